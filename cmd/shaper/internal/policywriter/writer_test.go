package policywriter_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/diff"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policywriter"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
)

// load reads a policy file.
func load(t *testing.T, name, text string) *policyfile.File {
	t.Helper()
	f, err := policyfile.Load(name, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	return f
}

// same checks that two policies differ at most in the units of rates, which the text of both shows.
func same(t *testing.T, name string, want, got *policyfile.File) {
	t.Helper()
	text := func(f *policyfile.File) string {
		out, err := policywriter.Write(f.Policy, policywriter.Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return out.Text
	}
	a, b := text(want), text(got)
	if strings.Contains(a, "count: packets") {
		return // rates of packets are read in lowest terms
	}
	if a != b {
		t.Errorf("%s: got\n%s\nwant\n%s", name, b, a)
	}
	for _, c := range diff.Policies(want, got) {
		if !strings.HasSuffix(c.String(), "(differs in a part that is not shown)") {
			t.Errorf("%s: %s\n%s", name, c, b)
		}
	}
}

// TestEachField writes policies that differ from a base in one field. The written policy must be the same,
// or the field must be refused.
func TestEachField(t *testing.T) {
	t.Parallel()
	written, refused := 0, 0
	for _, b := range policytest.Bases() {
		for _, s := range b.Settings() {
			f := load(t, "base", "classes: [{name: c}]")
			f.Policy = b.With(s)
			out, err := policywriter.Write(f.Policy, policywriter.Options{})
			if err != nil {
				refused++
				continue
			}
			written++
			back, err := policyfile.Load("back", []byte(out.Text))
			if err != nil {
				if f.Policy == nil {
					continue
				}
				t.Errorf("%s: %v: %v\n%s", b.Name, s, err, out.Text)
				continue
			}
			same(t, b.Name+": "+s.Field, f, back)
		}
	}
	t.Logf("%d written, %d refused", written, refused)
	if written == 0 || refused == 0 {
		t.Error("want some of both")
	}
}

// TestDocs writes the policies of the documentation.
func TestDocs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../../docs/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	written := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := policyfile.Load(name, text)
		if err != nil {
			continue // it needs other files
		}
		out, err := policywriter.Write(f.Policy, policywriter.Options{})
		if err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		written++
		same(t, name, f, load(t, name, out.Text))
	}
	if written == 0 {
		t.Error("no policy was written")
	}
}

// TestQuote checks that names are read as they were, whatever characters they have.
func TestQuote(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"a", "VOICE-1", "GE0/0/1", "yes", "Null", "1", "1.5", "0x10", "a b", "a: b", "a #b", "[a]", "{", "-",
		"~", "'", `"`, `\`, "é", "a,b", "%", "@", "a\u2028b", "12e3", ".5", "_1",
	} {
		var got struct{ A []any }
		quoted := policywriter.Quote(name)
		err := yaml.Unmarshal([]byte("a: ["+quoted+"]"), &got)
		if err != nil || len(got.A) != 1 || got.A[0] != name {
			t.Errorf("%q is read as %v, %v", name, got.A, err)
		}
	}
}

// TestHead checks that comments at the top stay comments.
func TestHead(t *testing.T) {
	t.Parallel()
	p := load(t, "p", "classes: [{name: c, green: drop}]").Policy
	out, err := policywriter.Write(p, policywriter.Options{Head: []string{"two\nlines"}})
	if err != nil || !strings.HasPrefix(out.Text, "# two?lines\nclasses:\n") {
		t.Errorf("got %v\n%s", err, out.Text)
	}
}
