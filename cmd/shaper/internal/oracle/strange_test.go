package oracle

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestStrangeWords adds an unknown key to each mapping of each policy in testdata, and replaces each word
// by an unknown one. The model must refuse both: it would never check a word that it ignores.
func TestStrangeWords(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := strange{t: t, file: file, site: Site{Dir: "testdata"}}
		if err := yaml.Unmarshal(text, &s.document); err != nil {
			t.Fatal(err)
		}
		if !s.accepted() {
			t.Errorf("%s: it is refused unchanged", file)
			continue
		}
		s.walk(s.document.Content[0], "")
	}
}

type strange struct {
	t        *testing.T
	file     string
	site     Site
	document yaml.Node
}

// accepted reports whether the model accepts the document.
func (s *strange) accepted() bool {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	if err := encoder.Encode(&s.document); err != nil {
		s.t.Fatal(err)
	}
	_, err := s.site.parse(out.Bytes())
	return err == nil
}

const word = "strange"

func (s *strange) walk(n *yaml.Node, path string) {
	switch n.Kind {
	case yaml.MappingNode:
		before := n.Content
		n.Content = append(before[:len(before):len(before)],
			&yaml.Node{Kind: yaml.ScalarNode, Value: word}, &yaml.Node{Kind: yaml.ScalarNode, Value: "1"})
		if s.accepted() {
			s.t.Errorf("%s: %s: an unknown key is accepted", s.file, path)
		}
		n.Content = before
		for i := 0; i < len(before); i += 2 {
			s.walk(before[i+1], path+"."+before[i].Value)
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			s.walk(item, path)
		}
	case yaml.ScalarNode:
		before := *n
		n.Value, n.Tag, n.Style = word, "", 0
		if s.accepted() && path != ".classes.name" { // a name is any word
			s.t.Errorf("%s: %s: %s instead of %s is accepted", s.file, path, word, before.Value)
		}
		*n = before
	}
}
