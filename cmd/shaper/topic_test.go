package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/docs"
)

// TestKeyTable checks that the table of keys in POLICY.md has exactly the keys that the program accepts.
// Errors about an unknown key list them.
func TestKeyTable(t *testing.T) {
	t.Parallel()
	table := map[string]string{}
	rows := regexp.MustCompile(`(?m)^\| \[([^]]+)\]\([^)]*\) \| (.*) \|$`)
	for _, m := range rows.FindAllStringSubmatch(docs.Policy, -1) {
		keys := regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(m[2], -1)
		var names []string
		for _, k := range keys {
			names = append(names, k[1])
		}
		slices.Sort(names)
		table[strings.ReplaceAll(m[1], "`", "")] = strings.Join(names, ", ")
	}
	const meter = "type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 1kB"
	const plan = "customers: {file: c.csv}\nplans: {p: {queue: {rate: 1mbit, limit: 1s}, "
	places := map[string]string{
		"the file":         "zzz: 1\n",
		"a class":          "classes: [{name: a, zzz: 1}]\n",
		"match":            "classes: [{name: a, match: {zzz: 1}}]\n",
		"precolor":         "classes: [{name: a, meter: {" + meter + ", color: aware, precolor: {zzz: 1}}}]\n",
		"share":            "classes: [{name: a, meter: {" + meter + ", share: {budget: b, zzz: 1}}}]\n",
		"an envelope":      "envelopes: {a: {zzz: 1}}\n",
		"an action":        "classes: [{name: a, green: {zzz: 1}}]\n",
		"a queue":          "queues: {a: {rate: 1mbit, limit: 1s, zzz: 1}}\n",
		"wred":             "queues: {a: {rate: 1mbit, limit: 1s, wred: {zzz: 1}}}\n",
		"wred of a color":  "queues: {a: {rate: 1mbit, limit: 1s, wred: {red: {zzz: 1}}}}\n",
		"codel":            "queues: {a: {rate: 1mbit, limit: 1s, codel: {zzz: 1}}}\n",
		"a link":           "links: {a: {rate: 1mbit, zzz: 1}}\n",
		"customers":        "customers: {file: c.csv, zzz: 1}\n",
		"a quota":          plan + "quota: {zzz: 1}}}\n",
		"an entry of when": plan + "when: {zzz: 1}}}\n",
		"length":           "length: {zzz: 1}\n",
	}
	accepted := regexp.MustCompile(`unknown key "zzz"[^:]*: want one of (.*)`)
	for place, policy := range places {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(file, []byte(policy), 0o644); err != nil {
			t.Fatal(err)
		}
		_, _, stderr := command("", "check", file)
		m := accepted.FindStringSubmatch(stderr)
		if m == nil {
			t.Errorf("%s: no list of keys in %q", place, stderr)
			continue
		}
		if table[place] != m[1] {
			t.Errorf("%s: POLICY.md has the keys\n%s\nthe program accepts\n%s", place, table[place], m[1])
		}
	}
	for place := range table {
		// The keys of meters and plans depend on the type. An unknown key names those of its type only.
		if _, ok := places[place]; !ok && place != "a meter" && place != "a plan" {
			t.Errorf("POLICY.md has the keys of %s, which are not tested", place)
		}
	}
}

// TestTopics checks that each topic, and each of its sections, is printed.
func TestTopics(t *testing.T) {
	t.Parallel()
	for _, topic := range topics {
		code, text, stderr := command("", "help", topic.name)
		if code != 0 || len(text) < 500 || stderr != "" {
			t.Errorf("help %s: exit code %d, %d bytes, %s", topic.name, code, len(text), stderr)
		}
		_, again, _ := command("", topic.name, "--help")
		if again != text {
			t.Errorf("shaper %s --help differs from shaper help %s", topic.name, topic.name)
		}
	}
	code, text, _ := command("", "help", "customers", "the", "file", "of", "customers")
	if code != 0 || !strings.HasPrefix(text, "THE FILE OF CUSTOMERS\n") {
		t.Errorf("exit code %d: %.200s", code, text)
	}
	code, _, stderr := command("", "help", "policy", "zzz")
	if want := `shaper: no section "zzz" in shaper help policy: want one of Shape everything to one rate, `; code != 2 ||
		!strings.HasPrefix(stderr, want) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, _, stderr := command("", "help", "polcy"); code != 2 || !strings.Contains(stderr, "no help for") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	_, all, _ := command("", "--help")
	for _, topic := range topics {
		if want := topic.short; !strings.Contains(all, want) {
			t.Errorf("shaper --help does not list topic %s", topic.name)
		}
	}
}

// TestReferencePages checks that shaper man writes the pages of section 5 from the docs.
func TestReferencePages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if code, _, stderr := command("", "man", dir); code != 0 {
		t.Fatal(stderr)
	}
	for name, want := range map[string]string{
		"shaper-policy.5":    ".SH FAIR QUEUES\n",
		"shaper-customers.5": ".SH THE FILE OF CUSTOMERS\n",
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), want) || !strings.HasPrefix(string(text), ".TH SHAPER") {
			t.Errorf("%s: %v, %d bytes, without %q", name, err, len(text), want)
		}
	}
}
