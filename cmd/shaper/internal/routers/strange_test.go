package routers_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
)

// TestStrangeWords inserts an unknown word at each place of configurations that Export wrote, and an
// unknown statement after each line. Import must report it: it is an error, a problem, a remark or a
// skipped statement, or it is a part of a name in the policy. SHAPER_ALL_PAIRS tries all configurations.
func TestStrangeWords(t *testing.T) {
	t.Parallel()
	for _, name := range routers.ExportNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := edge{name: name, dialect: routers.All[name]}
			places, seen := 0, map[string]bool{}
			texts := e.configurations()
			for i, j := range rand.Perm(len(texts)) {
				if i >= 8 && os.Getenv("SHAPER_ALL_PAIRS") == "" {
					break // eight of them have most statements
				}
				text := texts[j]
				before := e.outcome(t, text)
				lines := strings.SplitAfter(text, "\n")
				for i, line := range lines {
					for _, changed := range strangeLines(line) {
						after := e.outcome(t,
							strings.Join(slices.Concat(lines[:i], []string{changed}, lines[i+1:]), ""))
						if places++; after == before && !seen[changed] {
							seen[changed] = true
							t.Errorf("%s: not reported: %q", name, changed)
						}
					}
				}
			}
			t.Logf("%d places", places)
		})
	}
}

const word = "strange"

// comments matches the comments of a policy. They contain the words of statements, even of ignored
// ones.
var comments = regexp.MustCompile(`(?m)^#.*$|\s+#.*$`)

// strangeLines returns the line with a word at each place, and with a statement after it. Comments have
// no meaning.
func strangeLines(line string) (out []string) {
	text := strings.TrimLeft(line, " ")
	if text == "" || strings.ContainsAny(text[:1], "!#\n") {
		return nil
	}
	indent := line[:len(line)-len(text)]
	words := strings.Fields(text)
	for i := range len(words) + 1 {
		out = append(out, indent+strings.Join(slices.Insert(slices.Clone(words), i, word), " ")+"\n")
	}
	return append(out, line+indent+word+"\n", line+indent+word+" 1;\n")
}

// configurations returns one configuration for each field that the dialect expresses.
func (e *edge) configurations() (texts []string) {
	fields := map[string]bool{}
	for _, b := range policytest.Bases() {
		for _, s := range b.Settings() {
			if out := e.dialect.Export(b.With(s), "P"); !fields[s.Field] && len(out.Problems) == 0 {
				fields[s.Field] = true
				texts = append(texts, out.Text)
			}
		}
	}
	return texts
}

// outcome writes all that Import reports.
func (e *edge) outcome(t *testing.T, text string) string {
	in, err := e.dialect.Import(
		routers.Source{Name: "x", Text: text, Options: routers.Options{Platform: exportPlatforms[e.name]}})
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, p := range slices.Concat(in.Problems, in.Skipped) {
		fmt.Fprintln(&out, p.Text, p.Reason)
	}
	for _, d := range in.Drafts {
		policy := comments.ReplaceAllString(rendered(t, d), "")
		fmt.Fprintln(&out, d.Name, d.Problems, d.Remarks, policy)
	}
	return out.String()
}
