package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policywriter"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/summary"
)

// command runs a command with a text on standard input.
func command(input string, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(args, cli.Streams{In: strings.NewReader(input), Out: &o, Err: &e})
	return code, o.String(), e.String()
}

// TestImportErrors checks exit codes, messages and that nothing is written after an error.
func TestImportErrors(t *testing.T) {
	t.Parallel()
	const good = "policy-map P\n class class-default\n  police cir 8000 bc 1500\n"
	const lossy = good + "  set qos-group 3\n"
	const two = good + "policy-map Q\n class class-default\n  police cir 8000 bc 1500\n"
	for _, tt := range []struct {
		args  string
		input string
		code  int
		errs  string // contained
		out   string // contained; "" means no output
	}{
		{"--from cisco -", good, cli.ExitDone, "", "rate: 8kbit"},
		{"--from cisco -", strings.ReplaceAll(good, "\n", "\r\n"), cli.ExitDone, "", "rate: 8kbit"},
		{"--from cisco -", "\ufeff" + good, cli.ExitDone, "", "rate: 8kbit"},
		{"--from cisco -", "hostname r1\n" + good, cli.ExitDone, "skipped 1 statement outside of policies", "rate: 8kbit"},
		{"--from cisco --verbose -", "hostname r1\n" + good, cli.ExitDone, "standard input:1: skipped: hostname r1", "rate: 8kbit"},
		{"--from cisco -", lossy, cli.ExitFailed, "standard input:4: set qos-group 3: it is internal to the router", ""},
		{"--from cisco -", lossy, cli.ExitFailed, "1 statement cannot be expressed in a policy: nothing was written", ""},
		{"--from cisco --lossy -", lossy, cli.ExitDone, "warning: omitted: standard input:4: set qos-group 3", "rate: 8kbit"},
		{"--from cisco -", two, cli.ExitFailed, `it has 2 policies: select one with --name: "P" "Q"`, ""},
		{"--from cisco --name Q -", two, cli.ExitDone, "", "policy Q"},
		{"--from cisco --name R -", two, cli.ExitFailed, `it has no policy named "R": its policies are "P" "Q"`, ""},
		{"--from junos -", good, cli.ExitFailed, "it looks like cisco: import it with --from cisco", ""},
		{"--from cisco -", "interface e0\n rate-limit input 8000 1500 2000 conform-action transmit exceed-action drop\n", cli.ExitFailed, "standard input:2: rate-limit input 8000", ""},
		{"--from cisco --lossy -", "interface e0\n rate-limit input 8000 1500 2000 conform-action transmit exceed-action drop\n", cli.ExitFailed, "nothing is left", ""},
		{"--from cisco -", "", cli.ExitFailed, "it has no policy, policer, shaper or queue", ""},
		{"--from cisco -", "\x00\x01\xff", cli.ExitFailed, "it is not text", ""},
		{"--from cisco -", "policy-map P\n class class-default\n  police cir 2000 pir 1000\n", cli.ExitFailed, "standard input:3: pir 1kbit is below CIR 2kbit", ""},
		{"--from cisco none.cfg", "", cli.ExitFailed, `configuration "none.cfg": no such file`, ""},
		{"--from mikrotik -", good, cli.ExitUsage, `--from "mikrotik": want`, ""},
		{"-", good, cli.ExitDone, "read as cisco (--from)", "rate: 8kbit"},
		{"-", "hello\n", cli.ExitUsage, "--from is missing, and the language is not recognized", ""},
		{"--from cisco --platform junos -", good, cli.ExitUsage, `--platform "junos": want ios, nx-os, ios-xr, ncs5500 or eos`, ""},
		{"--platform ios -", "set firewall policer p then discard\n", cli.ExitUsage, "junos has no platforms", ""},
		{"--from cisco", "", cli.ExitUsage, "want one configuration", ""},
		{"--from libreqos network.json", "", cli.ExitUsage, "reads ShapedDevices.csv beside the file, and writes two files", ""},
		{"--from libreqos - -o x.yaml", "", cli.ExitUsage, "give the file by name", ""},
		{"--from libreqos network.json -o x.csv", "", cli.ExitUsage, "x.csv is the name of the file of customers", ""},
		{"--from cisco --link 10 -", good, cli.ExitUsage, "--link:", ""},
		{"--from cisco --link 0bit -", good, cli.ExitUsage, "--link: it must be above zero", ""},
		{"--from cisco --length l4 -", good, cli.ExitUsage, `--length "l4"`, ""},
		{"--from cisco --length l2 -", good, cli.ExitDone, "", "length: l2"},
	} {
		code, out, errs := command(tt.input, append([]string{"import"}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(errs, tt.errs) || !strings.Contains(out, tt.out) ||
			(out == "") != (tt.out == "") {
			t.Errorf("%s <%q: exit %d, stdout %q, stderr %q, want exit %d, %q, %q", tt.args, tt.input, code,
				out, errs, tt.code, tt.out, tt.errs)
		}
	}
}

// TestImportFile checks -o: the file is complete, and unchanged after an error.
func TestImportFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	if code, out, errs := command("", "import", "--from", "cisco", "../../docs/edge.cfg", "-o",
		path); code != cli.ExitDone ||
		out != "" {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, errs := command("", "check", path); code != cli.ExitDone {
		t.Errorf("check: exit %d: %s", code, errs)
	}
	if code, _, _ := command("policy-map P\n class X\n", "import", "--from", "cisco", "-", "-o",
		path); code != cli.ExitFailed {
		t.Errorf("got exit %d, want %d", code, cli.ExitFailed)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the file changed: %v", err)
	}
}

// TestImportTwoFiles checks that import --from libreqos reads two files and writes two, or none.
func TestImportTwoFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	network, policy := filepath.Join(dir, "network.json"), filepath.Join(dir, "isp.yaml")
	try := func(want int, errs string) {
		t.Helper()
		code, _, got := command("", "import", "--from", "libreqos", network, "-o", policy)
		if code != want || !strings.Contains(got, errs) {
			t.Fatalf("exit %d: %s, want %d: %s", code, got, want, errs)
		}
	}
	const header = "Circuit ID,Parent Node,IPv4,IPv6,Download Min Mbps,Upload Min Mbps,Download Max Mbps,Upload Max Mbps\n"
	write("network.json", `{"A": {"downloadBandwidthMbps": 10, "uploadBandwidthMbps": 10}}`)
	try(cli.ExitFailed, "ShapedDevices.csv")
	write("ShapedDevices.csv", header+"1,B,192.0.2.1,,1,1,5,5\n")
	try(cli.ExitFailed, filepath.Join(dir, "ShapedDevices.csv")+`:2: parent node "B" is not in `)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 2 {
		t.Errorf("files %v, error %v", files, err)
	}
	write("ShapedDevices.csv", header+"1,A,192.0.2.1,,1,1,5,5\n")
	try(cli.ExitDone, "")
	text, err := os.ReadFile(filepath.Join(dir, "isp.csv"))
	if err != nil || !strings.Contains(string(text), "1,192.0.2.1,default,A,") {
		t.Errorf("customers %q, error %v", text, err)
	}
	text, err = os.ReadFile(policy)
	if err != nil || !strings.Contains(string(text), "customers: {file: isp.csv}") {
		t.Errorf("policy %q, error %v", text, err)
	}
}

// TestImportJSON checks that import --json has the policy of the text output, its comments as
// conversions, and every statement that it refuses, omits or skips with its line. Exit codes and errors
// are as without --json.
func TestImportJSON(t *testing.T) {
	t.Parallel()
	const good = "hostname r1\npolicy-map P\n class class-default\n  police cir 8000 bc 1500\n"
	const qos = `[{"line":5,"text":"set qos-group 3","reason":"it is internal to the router"}]`
	for _, tt := range []struct {
		args, input, refused, omitted, skipped string
	}{
		{"--from cisco -", good, "[]", "[]", `[{"line":1,"text":"hostname r1"}]`},
		{"--from cisco -", good + "  set qos-group 3\n", qos, "[]", `[{"line":1,"text":"hostname r1"}]`},
		{"--from cisco --lossy -", good + "  set qos-group 3\n", "[]", qos, `[{"line":1,"text":"hostname r1"}]`},
		{
			"--from cisco -", "policy-map P\n class class-default\n  police cir 2000 pir 1000\n",
			`[{"line":3,"reason":"pir 1kbit is below CIR 2kbit: it must be equal or greater (RFC 2698 §2)"}]`, "[]", "[]",
		},
		{
			"--from cisco --lossy -", "interface e0\n rate-limit input 8000 1500 2000 conform-action transmit exceed-action drop\n",
			`[{"reason":"nothing is left that a policy can express"}]`, "", `[{"line":1,"text":"interface e0"}]`,
		},
		{"--from cisco ../../docs/edge.cfg", "", "[]", "[]", ""},
		{"--from cisco-show ../../docs/edge.show", "", "[]", "[]", ""},
	} {
		args := append([]string{"import"}, strings.Fields(tt.args)...)
		wantCode, wantOut, wantErrs := command(tt.input, args...)
		code, out, errs := command(tt.input, append(args, "--json")...)
		if code != wantCode || errs != wantErrs {
			t.Errorf("%s <%q: exit %d, stderr %q, without --json exit %d, %q", tt.args, tt.input, code, errs,
				wantCode, wantErrs)
		}
		var got map[string]json.RawMessage
		var policy string
		var conversions []policywriter.Conversion
		err := json.Unmarshal([]byte(out), &got)
		if err == nil {
			err = errors.Join(json.Unmarshal(got["policy"], &policy),
				json.Unmarshal(got["conversions"], &conversions))
		}
		if err != nil || strings.Contains(out, "null") {
			t.Errorf("%s <%q: %v: %s", tt.args, tt.input, err, out)
			continue
		}
		if policy != wantOut {
			t.Errorf("%s <%q: policy %q, want %q", tt.args, tt.input, policy, wantOut)
		}
		lines := strings.Split(policy, "\n")
		if n := strings.Count(policy, " # line "); n != len(conversions) || (n == 0) != (policy == "") {
			t.Errorf("%s <%q: %d conversions, want %d", tt.args, tt.input, len(conversions), n)
		}
		for _, c := range conversions {
			want := strings.TrimSuffix(fmt.Sprintf("# line %d: %s", c.Line, c.Text), ": ")
			if c.Policy < 1 || c.Policy > len(lines) || !strings.HasSuffix(lines[c.Policy-1], want) {
				t.Errorf("%s <%q: line %d of the policy does not end in %q", tt.args, tt.input, c.Policy,
					want)
			}
		}
		for name, want := range map[string]string{
			"refused": tt.refused, "omitted": tt.omitted, "skipped": tt.skipped,
		} {
			if want != "" && string(got[name]) != want {
				t.Errorf("%s <%q: %s %s, want %s", tt.args, tt.input, name, got[name], want)
			}
		}
	}
}

// TestImportJSONFile checks that import --json -o writes the policy that it prints, and that only one
// output can be the standard output.
func TestImportJSONFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	code, out, errs := command("", "import", "--from", "cisco", "../../docs/edge.cfg", "--json", "-o", path)
	var got importJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != cli.ExitDone {
		t.Fatalf("exit %d: %v: %s%s", code, err, out, errs)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != got.Policy || got.Policy == "" {
		t.Errorf("%v: the file has %q, want %q", err, text, got.Policy)
	}
	if code, out, errs = command("", "import", "--from", "cisco", "../../docs/edge.cfg", "--json", "-o",
		"-"); code != cli.ExitUsage ||
		out != "" {
		t.Errorf("-o -: exit %d: %s%s, want %d", code, out, errs, cli.ExitUsage)
	}
}

// TestExportErrors exports policies that a dialect cannot express, with and without --lossy.
func TestExportErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args, policy string
		code         int
		errs         string
		out          bool
	}{
		{"--to cisco", "classes: [{name: a, green: drop}]", cli.ExitDone, "", true},
		{"--to cisco", "classes: [{name: a, meter: {type: token-bucket, rate: 8kbit, burst: 1500, per: src}}]", cli.ExitFailed, "class a: per: src", false},
		{"--to cisco --lossy", "classes: [{name: a, meter: {type: token-bucket, rate: 8kbit, burst: 1500, per: src}}]", cli.ExitDone, "warning: omitted: ", true},
		{"--to cisco", "classes: [{name: a, meter: {type: token-bucket, rate: 10B/3s, burst: 1500}}]", cli.ExitFailed, "not a whole number of bits", false},
		{"--to huawei", "classes: [{name: a, meter: {type: token-bucket, rate: 1500bit, burst: 1500}}]", cli.ExitFailed, "not a whole number of kbit/s", false},
		{"--to cisco", "classes: [{name: a b, green: drop}]", cli.ExitFailed, `class "a b"`, false},
		{"--to cisco", "length: l1\nclasses: [{name: a, green: drop}]", cli.ExitFailed, "length", false},
		{"--to cisco", "otherwise: drop\nclasses: [{name: a, green: drop}]", cli.ExitFailed, "otherwise", false},
		{"--to cisco", "classes: [{name: a, meter: {type: trtcm4115, cir: 1mbit, cbs: 1500, eir: 1mbit, ebs: 1500}}]", cli.ExitFailed, "trtcm4115", false},
		{"--to cisco", "classes: [{name: a, match: {dscp: ef}, meter: m}, {name: b, meter: m}]\nmeters: {m: {type: token-bucket, rate: 8kbit, burst: 1500}}", cli.ExitFailed, "share meter m", false},
		{"--to cisco", "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 1mbit, limit: 10p, codel: true}}", cli.ExitFailed, "codel", false},
		{"--to junos", "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 1mbit, limit: 10p}}", cli.ExitFailed, "class-of-service", false},
		{"--to junos", "classes: [{name: a, meter: {type: token-bucket, rate: 8kbit, burst: 1500}, red: {dscp: 0}}]", cli.ExitFailed, "class a: red", false},
		{"--to h3c", "classes: [{name: a, match: {dscp: [1, 2, 3, 4, 5, 6, 7, 8, 9], vlan: 1}}]", cli.ExitFailed, "split the class", false},
		{"--to cisco", "classes: [{name: a, match: {src: [10.0.0.0/8, \"2001:db8::/32\"]}}]", cli.ExitFailed, "IPv4 and IPv6", false},
		{"--to cisco", "classes: [{name: a, match: {length: 1-100}}]", cli.ExitFailed, "not IP", false},
		{"--to cisco", "classes: []", cli.ExitUsage, "", false},
		{"--to nokia", "classes: [{name: a}]", cli.ExitUsage, `--to "nokia"`, false},
		{"", "classes: [{name: a}]", cli.ExitUsage, "--to is missing", false},
	} {
		path := filepath.Join(t.TempDir(), "p.yaml")
		if err := os.WriteFile(path, []byte(tt.policy), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := command("", append([]string{"export", path}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(errs, tt.errs) || (out != "") != tt.out {
			t.Errorf("%s of %s: exit %d, stdout %q, stderr %q, want exit %d, %q", tt.args, tt.policy, code,
				out, errs, tt.code, tt.errs)
		}
	}
}

// TestCompareShow checks that the counters of compare --show are those of a replay of the policy,
// and the errors.
func TestCompareShow(t *testing.T) {
	t.Parallel()
	const capture = "../../testdata/pcaps/bursts.pcap"
	code, out, errs := command("", "compare", capture, "--show", "../../docs/edge.show", "--json")
	if code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var got shownJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	code, out, errs = command("", "replay", capture, "--json", "--meter",
		"trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB")
	if code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var want summary.Totals
	if err := json.Unmarshal([]byte(out), &want); err != nil {
		t.Fatal(err)
	}
	if len(got.Classes) != 1 || len(got.Classes[0].Colors) != 3 {
		t.Fatalf("got %+v", got)
	}
	colors := got.Classes[0].Colors
	if colors[0].Count != want.Classes[0].Green || colors[1].Count != want.Classes[0].Yellow ||
		colors[2].Count != want.Classes[0].Red {
		t.Errorf("got %+v, want %+v", colors, want.Classes[0])
	}
	if *colors[2].RouterPackets != 318 || *colors[2].RouterBytes != 322452 { // as in the file
		t.Errorf("got %+v for violated", colors[2])
	}

	policy := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(policy,
		[]byte("classes: [{name: class-default, meter: {type: token-bucket, rate: 10mbit, burst: 64KiB}}]"),
		0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs = command("", "compare", capture, "--show", "../../docs/edge.show", "--policy", policy)
	if code != cli.ExitDone || !strings.Contains(out, "exceeded   red") {
		t.Errorf("with two colors: exit %d: %s%s", code, out, errs)
	}
	for _, tt := range []struct {
		args, errs string
		code       int
	}{
		{"--show ../../docs/edge.show --rate 1mbit", "--show cannot be combined", cli.ExitUsage},
		{"--name x --rate 1mbit", "need --show", cli.ExitUsage},
		{"--show ../../docs/edge.cfg", "it looks like cisco", cli.ExitFailed},
		{"--show none", `output "none": no such file`, cli.ExitFailed},
		{"--show ../../docs/edge.show --name x", `no policy named "x"`, cli.ExitFailed},
	} {
		code, out, errs := command("", append([]string{"compare", capture}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(errs, tt.errs) || out != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, want exit %d, %q", tt.args, code, out, errs, tt.code,
				tt.errs)
		}
	}
}

// TestExportDocs exports the policies of the docs in all dialects. Without problems, importing and
// exporting again gives the same configuration.
func TestExportDocs(t *testing.T) {
	t.Parallel()
	policies, err := filepath.Glob("../../docs/*.yaml")
	if err != nil || len(policies) < 5 {
		t.Fatalf("%q, %v", policies, err)
	}
	edge := filepath.Join(t.TempDir(), "edge.yaml")
	if code, _, errs := command("", "import", "--from", "cisco", "../../docs/edge.cfg", "-o",
		edge); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, errs)
	}
	policies = append(policies, edge)
	same := 0
	for _, policy := range policies {
		for _, dialect := range routers.ExportNames() {
			code, lossy, errs := command("", "export", "--to", dialect, "--lossy", policy)
			if code == cli.ExitUsage {
				break // a scenario of simulate
			}
			if code != cli.ExitDone || lossy == "" {
				t.Errorf("%s to %s: exit %d: %s", policy, dialect, code, errs)
			}
			if code, _, errs := command(lossy, "import", "--from", dialect, "--lossy",
				"-"); code == cli.ExitUsage {
				t.Errorf("%s to %s: import: exit %d: %s", policy, dialect, code, errs)
			}
			code, out, _ := command("", "export", "--to", dialect, policy)
			if code != cli.ExitDone {
				continue
			}
			path := filepath.Join(t.TempDir(), "p.yaml")
			if code, _, errs := command(out, "import", "--from", dialect, "-", "-o",
				path); code != cli.ExitDone {
				t.Errorf("%s to %s: import: exit %d: %s", policy, dialect, code, errs)
			} else if _, again, errs := command("", "export", "--to", dialect, path); again != out {
				t.Errorf("%s to %s: got\n%s\nwant\n%s\n%s", policy, dialect, again, out, errs)
			}
			same++
		}
	}
	if same < 3 { // edge.cfg has no part that only Cisco has, except a queue
		t.Errorf("%d exports without problems, want at least 3", same)
	}
}

// TestExportNotes checks the notes on values that a box refuses, clamps or rounds.
func TestExportNotes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ dialect, meter, want string }{
		{"cisco", "token-bucket rate=7999bit burst=1000", "rate 7999 is not between 8000 and"},
		{"cisco", "token-bucket rate=8kbit burst=999", "burst 999 is not between 1000 and 512000000"},
		{"h3c", "token-bucket rate=12kbit burst=1024", "rate 12 is not a multiple of 8"},
		{"h3c", "srtcm cir=16kbit cbs=1024 ebs=1000", "second burst 1000 is not a multiple of 512"},
		{"huawei", "trtcm cir=64kbit cbs=4000 pir=128kbit pbs=3999", "second burst 3999 is not between 4000"},
		{"junos", "token-bucket rate=8kbit burst=1499", "burst 1499 is not between 1500"},
	} {
		code, _, errs := command("", "export", "--to", tt.dialect, "--meter", tt.meter)
		if code != cli.ExitDone || !strings.Contains(errs, "note: class all: "+tt.want) {
			t.Errorf("%s, %s: exit %d, %q, want %q", tt.dialect, tt.meter, code, errs, tt.want)
		}
	}
	if _, _, errs := command("", "export", "--to", "h3c", "--meter",
		"token-bucket rate=16kbit burst=1024"); strings.Contains(errs, "class all") {
		t.Errorf("values that fit are noted: %q", errs)
	}
}
