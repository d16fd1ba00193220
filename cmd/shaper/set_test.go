package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

func TestSplitWords(t *testing.T) {
	for line, want := range map[string][]string{
		"":                          nil,
		" \t ":                      nil,
		"customer a off":            {"customer", "a", "off"},
		"\tcustomer  a\toff ":       {"customer", "a", "off"},
		`customer "a b" off`:        {"customer", "a b", "off"},
		`customer "a \"b\" \\" off`: {"customer", `a "b" \`, "off"},
		`customer "Müller" plan=x`:  {"customer", "Müller", "plan=x"},
		`customer a"b plan="x`:      {"customer", `a"b`, `plan="x`},
		`customer "" off`:           {"customer", "", "off"},
	} {
		got, err := splitWords(line)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v, want %q", line, got, err, want)
		}
	}
	for _, line := range []string{`customer "a off`, `"`, `customer a "\x"`} {
		if got, err := splitWords(line); err == nil {
			t.Errorf("%q: got %q, want an error", line, got)
		}
	}
}

func TestParseChange(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for line, want := range map[string]string{
		"customer a plan=b":                      `{"kind":"customer","name":"a","plan":"b"}`,
		"customer a plan=b rate=1mbit burst=2kB": `{"kind":"customer","name":"a","plan":"b","parameters":{"burst":"2kB","rate":"1mbit"}}`,
		"customer a off":                         `{"kind":"customer","name":"a","off":true}`,
		"customer a on rate=1mbit":               `{"kind":"customer","name":"a","parameters":{"rate":"1mbit"},"off":false}`,
		"customer a rate=1mbit for=1h":           `{"kind":"customer","name":"a","parameters":{"rate":"1mbit"},"until":"2026-12-01T01:00:00Z"}`,
		"customer a rate=50 Mbit/s for=1 h":      `{"kind":"customer","name":"a","parameters":{"rate":"50 Mbit/s"},"until":"2026-12-01T01:00:00Z"}`,
		"customer a reset":                       `{"kind":"customer","name":"a","reset":true}`,
		"link a rate=1mbit":                      `{"kind":"link","name":"a","parameters":{"rate":"1mbit"}}`,
		"queue a reset":                          `{"kind":"queue","name":"a","reset":true}`,
		"customer a":                             `want customer, link or queue, a name, and a change such as rate=50mbit`,
		"customer a plan=":                       `"plan=": want plan=NAME, a parameter such as rate=50mbit, off, on or reset`,
		"customer a faster":                      `"faster": want plan=NAME, a parameter such as rate=50mbit, off, on or reset`,
		"customer a for=1h":                      `customer "a": nothing to change`,
		"customer a off for=0s":                  `for=0s: it must be above zero`,
		"customer a reset for=1h":                `customer "a": reset cannot be combined with other changes`,
		"customer a rate=1mbit rate=2mbit":       `"rate=2mbit": rate is given twice`,
		"customer a plan=a off plan=a":           `"plan=a": plan is given twice`,
		"customer a on off":                      `"off": on or off is given twice`,
		"customer a off for=1h for=2h":           `"for=2h": for is given twice`,
		"class a off":                            `"class": want customer, link or queue`,
		"link a burst=1kB":                       `link "a": burst cannot be changed, only rate, guarantee, priority, weight, down, up, down-guarantee, up-guarantee`,
		"queue a off":                            `queue "a": want a rate, such as rate=35mbit`,
		`customer "" off`:                        `customer: the name is missing`,
	} {
		words, err := splitWords(line)
		if err != nil {
			t.Fatal(err)
		}
		c, err := parseChange(words, now, 0)
		got := fmt.Sprint(err)
		if err == nil {
			text, _ := json.Marshal(c)
			got = string(text)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", line, got, want)
		}
	}
	c, err := parseChange([]string{"customer", "a", "off", "for=2h"}, now, time.Hour)
	if err != nil || !c.Until.Equal(now.Add(2*time.Hour)) {
		t.Errorf("got %v, %v, want the end of the line, not of the flag", c.Until, err)
	}
}

// FuzzReadChanges checks that every change of a line is one that Check allows, and that nothing panics.
func FuzzReadChanges(f *testing.F) {
	f.Add("\ufeffcustomer \"a b\" plan=x rate=1mbit for=1h\n# comment\n\nlink l reset\n")
	f.Add("queue q rate=1mbit")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "changes.txt")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		list, err := readChanges(path, now, 0)
		if err != nil {
			return
		}
		for i := range list {
			if err := list[i].Check(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestReadTooManyChanges reads as many changes as a call may have, and one more.
func TestReadTooManyChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes.txt")
	for more, want := range []string{"", "more than 100000 changes: split it"} {
		if err := os.WriteFile(path, []byte(strings.Repeat("customer a off\n", changes.MaxList+more)),
			0o600); err != nil {
			t.Fatal(err)
		}
		list, err := readChanges(path, time.Now(), 0)
		if want == "" && (err != nil || len(list) != changes.MaxList) || want != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d more: got %d changes, %v", more, len(list), err)
		}
	}
}

// TestReadChanges reads a file that a program of another system wrote, and one with a line of
// megabytes, whose error names the line.
func TestReadChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes.txt")
	read := func(text string) ([]changes.Change, error) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return changesOf(nil, path, 0)
	}
	list, err := read("\ufeffcustomer a off\r\n\r\n# comment\r\ncustomer \"b c\" plan=p")
	if err != nil || len(list) != 2 || list[0].Name != "a" || list[1].Name != "b c" || list[1].Plan != "p" {
		t.Errorf("got %+v, %v, want changes of a and b c", list, err)
	}
	_, err = read("customer a off\ncustomer b " + strings.Repeat("x", 2<<20) + "\n")
	if !cli.IsUsage(err) || !strings.HasPrefix(err.Error(), path+":2: ") || len(err.Error()) > 2000 {
		t.Errorf("got an error of %d bytes, %.100v, want one that names line 2", len(fmt.Sprint(err)), err)
	}
}

// TestReadNoChanges checks that a file without changes is not a request to list them: the list is
// empty, not nil.
func TestReadNoChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes.txt")
	if err := os.WriteFile(path, []byte("\n# none today\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := changesOf(nil, path, 0); list == nil || len(list) > 0 || err != nil {
		t.Errorf("got %#v, %v, want an empty list", list, err)
	}
}
