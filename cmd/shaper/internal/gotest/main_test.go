package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// module contains the files of a module with every result that a test or a package can have.
var module = map[string]string{
	"go.mod":       "module example.org/m\n\ngo 1.26\n",
	"a/a_test.go":  "package a\nimport \"testing\"\nfunc TestGood(t *testing.T) { t.Log(\"hidden\") }\nfunc TestSubs(t *testing.T) {\n\tt.Run(\"x\", func(t *testing.T) {})\n\tt.Run(\"y\", func(t *testing.T) { t.Skip(\"no y here\") })\n}\n",
	"b/b_test.go":  "package b\nimport \"testing\"\nfunc TestBad(t *testing.T) {\n\tt.Run(\"ok\", func(t *testing.T) {})\n\tt.Run(\"bad\", func(t *testing.T) { t.Error(\"got 1\") })\n}\nfunc TestAlone(t *testing.T) { t.Run(\"fine\", func(t *testing.T) {}); t.Error(\"after\") }\n",
	"c/c_test.go":  "package c\nimport \"testing\"\nfunc TestOther(t *testing.T) {}\nfunc TestPanic(t *testing.T) { panic(\"p\") }\n",
	"d/d_test.go":  "package d\nimport \"testing\"\nfunc TestBuild(t *testing.T) { undefined() }\n",
	"e/e.go":       "package e\n",
	"f/f_test.go":  "package f\nimport (\"os\"; \"testing\")\nfunc TestMain(m *testing.M) { os.Exit(3) }\n",
	"g/g_test.go":  "package g\nimport (\"testing\"; \"time\")\nfunc TestSlow(t *testing.T) { time.Sleep(2 * time.Second) }\n",
	"h/h_test.go":  "package h\nimport \"testing\"\nfunc TestY(t *testing.T) { t.Skip(\"no y here\") }\n",
	"h/h2_test.go": "package h\nimport \"testing\"\nfunc TestLonely(t *testing.T) { t.SkipNow() }\n",
}

func writeModule(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range module {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

// TestRun checks the numbers, what is printed, and the exit code.
func TestRun(t *testing.T) {
	writeModule(t)
	t.Setenv("GOFLAGS", "-count=1") // results of earlier runs are cached
	for _, test := range []struct {
		packages string
		code     int
		last     string
		want     []string // regular expressions
		never    string
	}{
		{"./a ./e", 0, "2 passed, 0 failed, 1 skipped", []string{`ok   example.org/m/a \S+s: 2 passed, 1 skipped`, `skipped 1: no y here \(TestSubs/y\)`}, "hidden|/e "},
		{"./a ./b", 1, "4 passed, 2 failed, 1 skipped", []string{`FAIL example.org/m/b \S+s: 2 passed, 2 failed`, `(?s)\nFAIL example.org/m/b TestBad/bad\n.*got 1`, `after`}, "hidden"},
		{"./c", 1, "1 passed, 1 failed, 0 skipped", []string{`FAIL example.org/m/c TestPanic\n`, `panic: p`}, ""},
		{"./d ./a", 1, "2 passed, 1 failed, 1 skipped", []string{`undefined: undefined`}, ""},
		{"./f", 1, "0 passed, 1 failed, 0 skipped", []string{`FAIL example.org/m/f`}, ""},
		{"./g", 0, "1 passed, 0 failed, 0 skipped", []string{`\d+s: running g TestSlow\n`}, ""},
		{"./h ./a", 0, "2 passed, 0 failed, 3 skipped", []string{`skipped 2: no y here \(\S+, ...\)`, `skipped 1: no reason \(TestLonely\)`}, ""},
		{"./none", 1, "0 passed, 1 failed, 0 skipped", nil, ""},
	} {
		t.Run(test.packages, func(t *testing.T) {
			tally := filepath.Join(t.TempDir(), "tally")
			var out bytes.Buffer
			code, err := run(&out, tally, 600*time.Millisecond, strings.Fields(test.packages))
			if err != nil || code != test.code {
				t.Errorf("exit code %d, %v: want %d", code, err, test.code)
			}
			if !strings.HasSuffix(out.String(), "\n"+test.last+"\n") {
				t.Errorf("the last line is not %q", test.last)
			}
			if got, err := os.ReadFile(tally); err != nil || string(got) != test.last+"\n" {
				t.Errorf("tally %q, %v", got, err)
			}
			for _, want := range test.want {
				if !regexp.MustCompile(want).MatchString(out.String()) {
					t.Errorf("no %s", want)
				}
			}
			if test.never != "" && regexp.MustCompile(test.never).MatchString(out.String()) {
				t.Errorf("found %s", test.never)
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}
