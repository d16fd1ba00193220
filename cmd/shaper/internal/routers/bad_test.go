package routers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// samples are configurations of each language.
func samples() map[string]string {
	list := map[string]string{
		"cisco-show": " Gi0\n\n  Service-policy input: P\n\n    Class-map: class-default (match-any)\n      Match: any\n      police:\n          cir 10000 bps, bc 1500 bytes\n        conformed 3 packets, 300 bytes; actions:\n          transmit\n        exceeded 1 bytes; actions:\n          drop\n",
	}
	for name, text := range map[string]string{
		"cisco": "police cir 8000 pir 16000", "huawei": "car cir 64",
		"h3c":   "car cir 64 red remark-dscp-pass ef",
		"junos": "policer p { if-exceeding { bandwidth-limit 1m; burst-size-limit 15k; } then discard; }",
	} {
		list[name] = framed(name, text)
	}
	return list
}

// TestGuess checks that the configuration of another maker is recognized.
func TestGuess(t *testing.T) {
	t.Parallel()
	for is, text := range samples() {
		if got := Guess(text); got != is {
			t.Errorf("got %q, want %s:\n%s", got, is, text)
		}
		for _, as := range ImportNames() {
			in, err := From(as).Import(Source{Text: text})
			if err == nil {
				_, _, err = in.Pick("")
			}
			if err == nil || as == is {
				continue
			}
			if got := Misread(err, as, Source{Text: text}).Error(); !strings.Contains(got, "it looks like "+is) {
				t.Errorf("%s as %s: %s", is, as, got)
			}
		}
	}
}

// TestHalf checks that a configuration that ends anywhere gives an error, or a policy that compiles
// or has problems.
func TestHalf(t *testing.T) {
	t.Parallel()
	for name, text := range samples() {
		for n := range len(text) {
			checkImport(t, name, text[:n])
		}
	}
	for _, tt := range []struct{ dialect, text, want string }{
		{"junos", "firewall {\n policer p {\n", "line 2: { is not closed"},
		{"junos", "firewall {}\n policer p", `line 2: "policer p" does not end`},
		{"junos", "a;\n}\n", "line 2: } without {"},
		{"junos", "a { b }", "does not end with a semicolon"},
		{"junos", "/* a\n", "the comment does not end"},
		{"junos", "set firewall policer p then discard\ninsert firewall family inet filter F term A before term B\n", "line 2: insert changes"},
		{"junos", "a {\n b \"c\n; }", "line 2: the quotes are not closed"},
		{"cisco", "policy\x00map", "it is not text"},
		{"h3c", "\xff\xfe", "it is not text"},
	} {
		if _, err := From(tt.dialect).Import(Source{Text: tt.text}); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.text, err, tt.want)
		}
	}
}

// rendered returns a draft as a policy file.
func rendered(t *testing.T, d *Draft) string {
	t.Helper()
	out, err := d.Render("imported", "")
	if err != nil {
		t.Fatalf("%s: %v", d.Name, err)
	}
	return out.Text
}

// checkImport imports a text, with a link rate, and compiles each draft without problems. The
// compiler may reject values, such as a burst of 0.
func checkImport(t *testing.T, name, text string) (drafts, problems int) {
	t.Helper()
	in, err := From(name).Import(Source{Name: "x", Text: text, Options: Options{Link: meter.BitRate(1e9)}})
	if err != nil {
		return 0, 0
	}
	for _, d := range in.Drafts {
		problems += len(d.Problems)
		out := rendered(t, d)
		if len(d.Classes) == 0 {
			continue
		}
		_, err := policyfile.Source{Name: "x", Text: out}.Compile()
		if err != nil &&
			(strings.Contains(err.Error(), "unknown key") || strings.Contains(err.Error(), "yaml") ||
				strings.Contains(err.Error(), "no queue") || strings.Contains(err.Error(), "no link") ||
				strings.Contains(err.Error(), "no meter") || strings.Contains(err.Error(), "is not a")) {
			t.Errorf("%q as %s: %v\n%s", text, name, err, out)
		}
	}
	return len(in.Drafts), problems
}

func fuzz(f *testing.F, name string) {
	for _, text := range samples() {
		f.Add(text)
	}
	for dialect, able := range abilities {
		if dialect != name {
			continue
		}
		p, err := policyfile.Load("p",
			[]byte("classes: [{name: a, match: {dport: [1, 2], src: 10.0.0.0/8, dscp: ef}, meter: {type: trtcm, cir: 8kbit, cbs: 1500, pir: 16kbit, pbs: 1500}}, {name: b, match: {dscp: [1, 2]}, green: drop}]"))
		if err != nil {
			f.Fatal(able, err)
		}
		f.Add(All[name].Export(p.Policy, "P").Text)
	}
	f.Fuzz(func(t *testing.T, text string) { checkImport(t, name, text) })
}

func FuzzCisco(f *testing.F)     { fuzz(f, "cisco") }
func FuzzCiscoShow(f *testing.F) { fuzz(f, "cisco-show") }
func FuzzJunos(f *testing.F)     { fuzz(f, "junos") }
func FuzzHuawei(f *testing.F)    { fuzz(f, "huawei") }
func FuzzH3C(f *testing.F)       { fuzz(f, "h3c") }

// TestRealFiles reads configurations of routers below SHAPER_ROUTERS, such as those in the tests of
// genieparser and batfish, and checks that each police statement is read, or named with a reason.
func TestRealFiles(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("SHAPER_ROUTERS")
	if dir == "" {
		t.Skip("set SHAPER_ROUTERS to a folder with configurations, such as a clone of github.com/CiscoTestAutomation/genieparser")
	}
	type tally struct{ files, statements, read, named int }
	total := map[string]*tally{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := string(raw)
		is := Guess(text)
		if From(is) == nil || len(raw) > 1<<20 {
			return nil
		}
		lines, err := ReadLines(text, nil)
		if err != nil {
			return nil
		}
		in, err := From(is).Import(Source{Name: path, Text: text, Options: Options{Link: meter.BitRate(1e9)}})
		if err != nil {
			t.Logf("%s: %v", path, err)
			return nil
		}
		checkImport(t, is, text)
		said := map[int]bool{}
		for _, d := range in.Drafts {
			out, err := d.Render("", "")
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			for _, c := range out.Conversions {
				said[c.Line] = true
			}
		}
		named := map[int]bool{}
		for _, d := range in.Drafts {
			for _, p := range d.Problems {
				named[p.Line] = true
				for line := p.Line; line <= p.Last; line++ {
					named[line] = true
				}
			}
		}
		for _, p := range in.Problems {
			named[p.Line] = true
		}
		n := total[is]
		if n == nil {
			n = &tally{}
			total[is] = n
		}
		n.files++
		for _, l := range lines {
			if !isPolicer(is, l) {
				continue
			}
			n.statements++
			switch {
			case named[l.Number]:
				n.named++
			case said[l.Number]:
				n.read++
			default:
				t.Errorf("%s:%d: %s is neither read nor named", path, l.Number, l.Text())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range total {
		t.Logf("%s: %d files, %d police statements: %d read, %d named as not understood", name, n.files,
			n.statements, n.read, n.named)
	}
	if len(total) == 0 {
		t.Error("no configuration found")
	}
}

// isPolicer reports whether a line is a police statement.
func isPolicer(dialect string, l Line) bool {
	switch dialect {
	case "cisco":
		return l.Has("police") && len(l.Words) > 1
	case "cisco-show":
		return strings.HasPrefix(strings.ToLower(l.Words[0]), "police:")
	case "junos":
		return strings.Contains(l.Text(), "bandwidth-limit") ||
			strings.Contains(l.Text(), "committed-information-rate")
	}
	return l.Has("car") || l.Has("qos", "car")
}
