package policyfile

import (
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

func shared(share string) string {
	return "classes:\n  - name: a\n    meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, share: " + share +
		"}\n"
}

func TestBudget(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]dataplane.Budget{
		"{budget: uplinks, store: host}":              {Name: "uplinks"},
		"{budget: uplinks, store: host, count: each}": {Name: "uplinks"},
		"{budget: uplinks, store: host, count: once}": {Name: "uplinks", Once: true},
		"{budget: c:4.2@x, store: 'redis://u:p@h:1/2', interval: 50ms, rescue: 0.5%, weight: 3, hosts: 40}": {
			Name: "c:4.2@x", Address: dataplane.Address{URL: "redis://u:p@h:1/2"},
			Interval: 50 * time.Millisecond, Rescue: dataplane.Fraction{Num: 1, Den: 200}, Weight: 3,
			Hosts: 40,
		},
		"{budget: a, store: {url: 'rediss://h', password-file: /p, ca-file: /ca, cert-file: /c, key-file: /k}}": {
			Name: "a",
			Address: dataplane.Address{
				URL: "rediss://h", PasswordFile: "/p", CAFile: "/ca", CertFile: "/c", KeyFile: "/k",
			},
		},
	} {
		f, err := loadAndCompile(shared(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := f.Policy.Classes[0].Meter.Budget; *got != want {
			t.Errorf("%s: got %+v, want %+v", text, *got, want)
		}
	}
}

func TestBudgetErrors(t *testing.T) {
	t.Parallel()
	const class = "classes:\n  - name: a\n    meter: "
	for _, test := range []struct {
		name, text, place string
		says              []string
	}{
		{"a word", shared("s"), "3:65", []string{"mapping"}},
		{"no budget", shared("{store: host}"), "3:65", []string{"name of a budget"}},
		{"no store", shared("{budget: a}"), "3:65", []string{"store: host", "redis://"}},
		{"braces", shared("{budget: 'a{b}', store: host}"), "", []string{`"a{b}"`, "letters, digits"}},
		{"line break", shared(`{budget: "a\nb", store: host}`), "", []string{`"a\nb"`, "letters, digits"}},
		{"long name", shared("{budget: " + strings.Repeat("a", 65) + ", store: host}"), "", []string{"1 to 64 characters"}},
		{"interval of a host", shared("{budget: a, store: host, interval: 1s}"), "3:100", []string{"interval is only for a budget on a server"}},
		{"count", shared("{budget: a, store: host, count: twice}"), "3:97", []string{`"twice" is not one of each, once`}},
		{"count of a server", shared("{budget: a, store: 'redis://h', count: once}"), "3:104", []string{"count once is only for store: host"}},
		{"short interval", shared("{budget: a, store: 'redis://h', interval: 9ms}"), "", []string{"9ms is not between 10ms and 10s"}},
		{"rescue", shared("{budget: a, store: 'redis://h', rescue: 101%}"), "3:105", []string{"101%"}},
		{"weight", shared("{budget: a, store: 'redis://h', weight: 0}"), "3:105", []string{"0 is not between 1 and 1000"}},
		{"hosts", shared("{budget: a, store: 'redis://h', hosts: 4097}"), "3:104", []string{"4097 is not between 1 and 4096"}},
		{"scheme", shared("{budget: a, store: 'http://u:secret@h'}"), "3:84", []string{`"http"`, "rediss://"}},
		{"no URL", shared("{budget: a, store: 'h:6379:secret'}"), "3:84", []string{"neither host nor a URL"}},
		{"half a certificate", shared("{budget: a, store: {url: 'rediss://h', cert-file: c}}"), "3:84", []string{"go together"}},
		{"certificate without TLS", shared("{budget: a, store: {url: 'redis://h', ca-file: c}}"), "3:84", []string{"rediss://"}},
		{"keys", class + "{type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, per: src, share: {budget: a, store: host}}\n", "", []string{"cannot be combined with per"}},
		{"a log", class + "{type: sliding-log, limit: 2kB, window: 1s, share: {budget: a, store: host}}\n", "", []string{"sliding-log"}},
		{"a window on a server", class + "{type: fixed-window, limit: 2kB, window: 1s, share: {budget: a, store: 'redis://h'}}\n", "", []string{"do not add up"}},
		{"warm-up", class + "{type: token-bucket, rate: 1mbit, burst: 2kB, warmup: 1s, share: {budget: a, store: 'redis://h'}}\n", "", []string{"warmup"}},
		{"initial", class + "{type: token-bucket, rate: 1mbit, burst: 2kB, initial: 50%, share: {budget: a, store: 'redis://h'}}\n", "", []string{"begins empty"}},
		{"twice", shared("{budget: a, store: host}") + "  - name: b\n    meter: {type: gcra, rate: 1mbit, burst: 2kB, share: {budget: a, store: host}}\n", "", []string{"another meter"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			oneError(t, test.text, test.place, test.says)
			if _, err := loadAndCompile(test.text); err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%v: contains a password", err)
			}
		})
	}
}
