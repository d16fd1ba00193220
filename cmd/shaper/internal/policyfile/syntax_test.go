package policyfile

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// syntaxErrors has a text for each error that the YAML library finds. library is a part of
// the library's description, which our errors must not have.
var syntaxErrors = []struct{ text, library, want string }{
	// Keys in places that cannot have one.
	{"name: a: b\n", "mapping values are not allowed", `1:8: a second ":" in one value: put a value that contains ": " in quotes`},
	{"classes:\n  - name: a\n     red: drop\n", "mapping values are not allowed", "3:6: this line is indented too far: keys of one mapping begin in the same column"},
	{"length: l3\n# text\n  otherwise: drop\n", "expected key", "3:3: the indentation of this line fits none of the lines above"},
	{"length: l3\n\n  otherwise: drop\n", "mapping values are not allowed", "3:3: this line is indented too far: keys"},
	{"classes\n  - name: a\n", "mapping values are not allowed", `1:1: ":" is missing after the key "classes"`},
	{"classes:\n  - name\n    red: drop\n", "mapping values are not allowed", `2:5: ":" is missing after the key "name"`},
	{"length:l3\nclasses: []\n", "mapping values are not allowed", `1:1: a space is missing after ":" in "length:l3"`},
	{"length: l3\nclasses\nqueues: {}\n", "could not find expected ':'", `2:1: ":" is missing after the key "classes"`},
	{"length: l3\notherwise:drop\n", "could not find expected ':'", `2:1: a space is missing after ":" in "otherwise:drop"`},
	{"classes:\n  - name: a\n    red drop", "could not find expected ':'", `3:5: ":" is missing after the key "red"`},
	{"classes: - name: a\n", "block sequence entries are not allowed", `1:10: a list entry cannot begin here: put "- " at the beginning of a line`},
	{"name: ? b\n", "mapping keys are not allowed", `1:7: "? " cannot begin a value: put the value in quotes`},

	// Characters.
	{"name: @x\n", "cannot start any token", `1:7: a value cannot begin with "@": put it in quotes`},
	{"name: `x`\n", "cannot start any token", "1:7: a value cannot begin with \"`\": put it in quotes"},
	{"classes:\n\t- name: a\n", "cannot start any token", `2:1: a tab cannot indent a line or follow "-": use spaces`},
	{"classes:\n-\tname: a\n", "cannot start any token", `2:2: a tab cannot indent a line or follow "-": use spaces`},
	{"length: l3\n\totherwise: drop\n", "tab character that violates indentation", "2:1: a tab cannot indent a line: use spaces"},
	{"name: |\n\ttext\n", "tab character where an indentation space", "2:1: a tab cannot indent a line: use spaces"},
	{"name: a\x01b\n", "control characters are not allowed", "1:8: character U+0001 is not allowed"},
	{"# é\nname: é\x7f\n", "control characters are not allowed", "2:8: character U+007F is not allowed"},
	{"a: 1\nname: é\xff\n", "invalid leading UTF-8 octet", "2:8: byte 0xff is not UTF-8: save the text as UTF-8"},
	{"name: \xc3\n", "invalid trailing UTF-8 octet", "1:7: byte 0xc3 is not UTF-8"},
	{"name: \xc3", "incomplete UTF-8 octet sequence", "1:7: byte 0xc3 is not UTF-8"},
	{"name: \xc0\x80\n", "invalid length of a UTF-8 sequence", "1:7: byte 0xc0 is not UTF-8"},
	{"name: \xed\xa0\x80\n", "invalid Unicode character", "1:7: byte 0xed is not UTF-8"},
	{"\xff\xfea", "incomplete UTF-16 character", "1:1: the text is UTF-16 with an error: save it as UTF-8"},
	{"\xff\xfe\x00\xdc", "unexpected low surrogate area", "1:1: the text is UTF-16 with an error"},
	{"\xff\xfe\x00\xd8", "incomplete UTF-16 surrogate pair", "1:1: the text is UTF-16 with an error"},
	{"\xfe\xff\xd8\x00\x00a", "expected low surrogate area", "1:1: the text is UTF-16 with an error"},

	// Quotes, and text with several lines.
	{"length: l3\nname: \"a\n", "unexpected end of stream", "2:7: this quote is never closed"},
	{"name: 'a\nred: drop\n", "unexpected end of stream", "1:7: this quote is never closed"},
	{"name: 'a\n---\n", "unexpected document indicator", "1:7: this quote is never closed"},
	{"name: \"a\\qb\"\n", "unknown escape character", `1:9: unknown escape after \ in double quotes: write \\ for a backslash, or use single quotes`},
	{"name: \"\\xzz\"\n", "expected hexdecimal number", `1:10: hexadecimal digits are missing: \x has 2, \u has 4 and \U has 8`},
	{"name: \"\\ud800\"\n", "invalid Unicode character escape code", "1:10: this escape is not a Unicode character"},
	{"name: |0\n  a\n", "indentation indicator equal to 0", `1:8: the indentation after "|" must be from 1 to 9`},
	{"name: >-0\n  a\n", "indentation indicator equal to 0", `1:9: the indentation after ">" must be from 1 to 9`},
	{"name: |x\n", "expected comment or line break", `1:8: after "|" only -, + or an indentation from 1 to 9 can follow`},

	// Anchors, tags and directives.
	{"dst: *\n", "expected alphabetic or numeric character", `1:6: a name is missing after "*": put a value that begins with it in quotes`},
	{"a: 1\nb: &\n", "expected alphabetic or numeric character", `2:4: a name is missing after "&"`},
	{"a: 1\nclasses: [*host]\n", "unknown anchor", "2:11: alias *host has no anchor &host before it: put a value that begins with * in quotes"},
	{"a: !<x\n", "the expected '>'", "1:4: ! begins a tag, and a policy has none: put a value that begins with ! in quotes"},
	{"a: !<>\n", "expected tag URI", "1:4: ! begins a tag"},
	{"a: !x%zz\n", "URI escaped octet", "1:4: ! begins a tag"},
	{"a: !x%ff\n", "incorrect leading UTF-8 octet", "1:4: ! begins a tag"},
	{"a: !x%c3%28\n", "incorrect trailing UTF-8 octet", "1:4: ! begins a tag"},
	{"a: !x!y z\n", "undefined tag handle", "1:4: ! begins a tag"},
	{"a: !\"x\n", "expected whitespace or line break", "1:4: ! begins a tag"},
	{"%x y\n", "unknown directive name", "1:1: a line that begins with % is a directive: a policy has none"},
	{"%\n", "expected directive name", "1:1: a line that begins with %"},
	{"%TA:\n", "unexpected non-alphabetical character", "1:1: a line that begins with %"},
	{"%YAML 9.9\n---\na: 1", "incompatible YAML document", "1:1: a line that begins with %"},
	{"%YAML x\n", "expected version number", "1:1: a line that begins with %"},
	{"%YAML 1x\n", "expected digit or '.' character", "1:1: a line that begins with %"},
	{"%YAML 1.99999999999\n", "extremely long version number", "1:1: a line that begins with %"},
	{"%YAML 1.1 x\n", "expected comment or line break", "1:1: a line that begins with %"},
	{"%YAML 1.1\n%YAML 1.1\n---\n", "duplicate %YAML directive", "2:1: a line that begins with %"},
	{"%TAG x\n", "expected '!'", "1:1: a line that begins with %"},
	{"%TAG !-x\n", "expected '!'", "1:1: a line that begins with %"},
	{"%TAG !x!y z\n", "expected whitespace", "1:1: a line that begins with %"},
	{"%TAG !x! tag:x`\n", "expected whitespace or line break", "1:1: a line that begins with %"},
	{"%TAG ! tag:x\n%TAG ! tag:x\n---\n", "duplicate %TAG directive", "2:1: a line that begins with %"},

	// Unexpected text.
	{"{a: b} c\n", "expected <document start>", `1:8: unexpected "c" after a value: put the whole value in quotes`},
	{"{a: b}}\n", "expected <document start>", `1:7: "}" closes nothing`},
	{"  classes: []\nqueues: {}\n", "expected <document start>", "2:1: this line is indented less than the first one"},
	{"length: l3\n...\nclasses: []\n", "expected <document start>", `3:1: this line is after "...", which ends the policy`},
	{"name: 'it's'\n", "expected key", `1:11: unexpected "s'" after the closing quote`},
	{"name: \"a\", red: drop\n", "expected key", `1:10: unexpected "," after the closing quote`},
	{"dport: [1] 2\n", "expected key", `1:12: unexpected "2" after a value: put the whole value in quotes`},
	{"match: {a: 1}}\n", "expected key", `1:14: "}" closes nothing`},
	{"length: l3\n- name: a\n", "expected key", "2:1: a list entry cannot follow keys in the same column: indent it below its key"},
	{"classes:\n    - name: a\n   - name: b\n", "expected key", "3:4: the indentation of this line fits none of the lines above"},
	{"classes:\n    name: a\n   red: b\n", "expected key", "3:4: the indentation of this line fits none of the lines above"},
	{"classes:\n  - name: a\n  red: drop\n", "expected '-' indicator", `3:3: this line continues a list, but does not begin with "- "`},
	{"- 'a' b\n", "expected '-' indicator", `1:7: unexpected "b" after the closing quote`},
	{"- - a\n - b\n", "expected '-' indicator", "2:2: the indentation of this line fits none of the lines above"},

	// Brackets.
	{"dport: [1, , 2]\n", "expected node content", `1:12: a value is missing before ","`},
	{"dport: ]\n", "expected node content", `1:8: "]" closes nothing: put a value that begins with it in quotes`},
	{"dport: ,\n", "expected node content", `1:8: a value is missing before ","`},
	{"a: 1\ndport: [\n", "expected node content", `2:8: "[" is never closed`},
	{"classes: [\n  - name: a]\n", "expected node content", `2:3: a list in brackets uses commas instead of "- "`},
	{"match: {dport: ]}\n", "expected node content", `1:16: a value is missing before "]"`},
	{"dport: [1, 2\n", "expected ',' or ']'", `1:8: "[" is never closed`},
	{"dport: [1, 2\n# end\n\n", "expected ',' or ']'", `1:8: "[" is never closed`},
	{"dport: [1, 2\nred: drop\n", "expected ',' or ']'", `1:8: "[" is not closed: "," or "]" is missing before line 2`},
	{"match: {a: 1\n  b: 2}\n", "expected ',' or '}'", `1:8: "{" is not closed: "," or "}" is missing before line 2`},
	{"match: {a: 1\n", "expected ',' or '}'", `1:8: "{" is never closed`},
	{"dport: [1, 2}\n", "expected ',' or ']'", `1:13: want "]" instead of "}"`},
	{"match: {a: 1]\n", "expected ',' or '}'", `1:13: want "}" instead of "]"`},
	{"match: {a: b: c}\n", "expected ',' or '}'", `1:13: a second ":" in one value: put a value that contains ": " in quotes`},
	{"match: {a: 'b' 'c'}\n", "expected ',' or '}'", `1:16: "," or "}" is missing before "'c'}"`},
	{strings.Repeat("[", 10_001), "exceeded max depth", "1:10001: the values are nested too deeply"},
	{strings.Repeat("- ", 10_001), "exceeded max depth", "1:20001: the values are nested too deeply"},

	// Other line ends.
	{"length: l3\r\nname: 'a' b\r\n", "expected key", `2:11: unexpected "b" after the closing quote`},
	{"a: 1\n---\nname: a: b\n", "mapping values are not allowed", `3:8: a second ":" in one value`},
}

func TestSyntaxErrors(t *testing.T) {
	for _, tt := range syntaxErrors {
		if err := firstLibraryError(tt.text); err == nil || !strings.Contains(err.Error(), tt.library) {
			t.Errorf("%.60q: got %v from the library, want %q", tt.text, err, tt.library)
		}
		_, err := Load("p.yaml", []byte(tt.text))
		if err == nil {
			t.Errorf("%.60q: got nil, want an error", tt.text)
			continue
		}
		if got := err.Error(); !strings.HasPrefix(got, "p.yaml:"+tt.want) || strings.Contains(got, "\n") ||
			strings.Contains(got, tt.library) {
			t.Errorf("%.60q:\n got %s\nwant p.yaml:%s", tt.text, got, tt.want)
		}
	}
	if _, err := LoadScenario("s.yaml", []byte("%x\n")); err == nil ||
		err.Error() != "s.yaml:1:1: a line that begins with % is a directive: a scenario has none" {
		t.Errorf("a directive in a scenario: got %v", err)
	}
}

// firstLibraryError returns the first error of the library in any document of a text.
func firstLibraryError(text string) (err error) {
	for decoder := yaml.NewDecoder(strings.NewReader(text)); err == nil; {
		err = parse(decoder, new(yaml.Node))
	}
	return err
}

// TestSyntaxComplete checks that syntaxErrors has every problem in the library's source. A
// new version may add others.
func TestSyntaxComplete(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "go.yaml.in/yaml/v3").Output()
	if err != nil {
		t.Fatal(err)
	}
	// Errors of the internal state or of a reader, which cannot occur.
	const impossible = `expected <stream-start>|input error: `
	seen := 0
	for _, file := range []string{"scannerc.go", "parserc.go", "readerc.go"} {
		source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), file))
		if err != nil {
			t.Fatal(err)
		}
		words := regexp.MustCompile(`"((?:did not find|could not find|found|exceeded|block sequence|mapping|control|invalid|incomplete|unexpected|expected|input) ?[^"]* [^"]*)"`)
		for _, m := range words.FindAllStringSubmatch(string(source), -1) {
			seen++
			problem, _, _ := strings.Cut(m[1], " of %d")
			if regexp.MustCompile(impossible).MatchString(problem) ||
				problem == "invalid character sequence" || problem == "invalid parser state" {
				continue
			}
			if !knownProblem(problem) {
				t.Errorf("%s: no test for the problem %q", file, problem)
			}
		}
	}
	if seen < 50 {
		t.Errorf("got %d problems, want at least 50", seen)
	}
}

func knownProblem(problem string) bool {
	for _, tt := range syntaxErrors {
		if strings.Contains(problem, tt.library) {
			return true
		}
	}
	return false
}

// TestSyntaxUnknown checks that unknown problems keep the description and the line of the
// library.
func TestSyntaxUnknown(t *testing.T) {
	for text, want := range map[string]string{
		"yaml: line 7: something new":                           "p.yaml:7:1: something new",
		"yaml: something\nnew":                                  "p.yaml:1:1: something new",
		"something new":                                         "p.yaml:1:1: something new",
		"yaml: line 9: mapping values are not allowed":          "p.yaml:9:1: mapping values are not allowed",
		"yaml: line 99: could not find expected ':'":            `p.yaml:99:1: ":" is missing after the key ""`,
		"yaml: unknown anchor 'x' referenced":                   "p.yaml:1:1: alias *x has no anchor &x before it",
		"the YAML parser failed: internal error: please report": "p.yaml:1:1: the YAML parser failed: internal error: please report",
	} {
		for _, decoder := range []*yaml.Decoder{nil, {}} { // neither has a parser with places
			err := syntaxError("p.yaml", []byte("a\nb\n]"), "policy", decoder, errorText(text))
			if !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", text, err, want)
			}
		}
	}
}

// TestSyntaxPanic checks that a panic of the library is an error.
func TestSyntaxPanic(t *testing.T) {
	if err := parse(&yaml.Decoder{}, new(yaml.Node)); err == nil ||
		!strings.HasPrefix(err.Error(), "the YAML parser failed: ") {
		t.Errorf("a decoder without a parser: got %v", err)
	}
}

type errorText string

func (e errorText) Error() string { return string(e) }

// TestAnchorHolders checks that keys that begin with x- are accepted at the top of a policy.
func TestAnchorHolders(t *testing.T) {
	f, err := loadAndCompile(`x-meters:
  - &small {type: token-bucket, rate: 1mbit, burst: 3kB}
x-anything: 3
classes:
  - {name: a, meter: *small}
`)
	if err != nil || f.Policy.Classes[0].Meter == nil {
		t.Fatalf("%v", err)
	}
	for text, want := range map[string]string{
		"x-a: 1\nx-a: 2\nclasses: [{name: a}]\n": "p.yaml:2:1: ",
		"xa: 1\nclasses: [{name: a}]\n":          `p.yaml:1:1: unknown key "xa" in a policy: want one of classes, customers, envelopes, `,
		"classes: [{name: a, x-b: 1}]\n":         `p.yaml:1:21: unknown key "x-b" in a class`,
	} {
		if _, err := Load("p.yaml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// TestLineOrder checks that errors have the order of their places.
func TestLineOrder(t *testing.T) {
	form := `classes:
  - {name: a, meter: none, red: 3}
  - {nam: b}
links: {wan: {rat: 1mbit}}
queues: {q: {link: lan}}
meters: {m: {type: x}, n: {type: y}}
length: l4
`
	meaning := `classes:
  - {name: '-', meter: m}
  - {name: b, red: {queue: q}}
meters: {m: {type: trtcm, cir: 2mbit, cbs: 1, pir: 1mbit, pbs: 1}}
queues: {q: {rate: 0bit, limit: 1s}}
`
	many := "length: [\n" + strings.Repeat(" {},\n", 150) + "]\nclasses: [{name: a, match: {sport: [" +
		strings.Repeat("x,\n", 150) + "]}}]\nlinks: 3\n"
	for _, text := range []string{form, meaning, many} {
		_, err := loadAndCompile(text)
		if err == nil {
			t.Fatalf("%.60q: got nil, want an error", text)
		}
		line, column := 0, 0
		for _, m := range regexp.MustCompile(
			`(?m)^p.yaml:(\d+):(\d+): `).FindAllStringSubmatch(err.Error(), -1) {
			l, _ := strconv.Atoi(m[1])
			c, _ := strconv.Atoi(m[2])
			if l < line || l == line && c < column {
				t.Errorf("got %d:%d after %d:%d, want errors in order:\n%v", l, c, line, column, err)
			}
			line, column = l, c
		}
		if line < 4 {
			t.Errorf("got the last error at line %d, want 4 or later:\n%v", line, err)
		}
	}
}
