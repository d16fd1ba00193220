package livetest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemaOf returns the schema that shaper schema prints for a command.
func (p *pair) schemaOf(command string) *jsonschema.Schema {
	p.t.Helper()
	out, _ := p.wantExit(0, append([]string{"schema"}, strings.Fields(command)...)...)
	text, err := jsonschema.UnmarshalJSON(strings.NewReader(out))
	if err != nil {
		p.t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", text); err != nil {
		p.t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// TestLiveSchemas checks the outputs of live commands against their schemas.
func TestLiveSchemas(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	text := strings.Replace(linksPolicy, "classes:\n",
		"classes:\n  - {name: customers, match: {proto: 253}, per: customer, meter: plan}\n", 1)
	text = strings.Replace(text, "{name: rest, ", "{name: rest, meter: {type: srtcm, cir: 1mbit, cbs: 9kB, ebs: 9kB, per: src, keys: 9}, ", 1)
	text = strings.Replace(text, "match: {dscp: ef}, ",
		"match: {dscp: ef}, meter: {type: token-bucket, rate: 1mbit, burst: 9kB, share: {budget: b, store: host}}, ", 1)
	policy := writePolicy(t, text+"customers: {file: c.csv}\nplans:"+setPlans)
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "c.csv"), setTable)
	check := func(command string, more ...string) {
		t.Helper()
		out, _ := p.wantExit(0, append(append(strings.Fields(command), more...), "--json")...)
		if out == "" {
			t.Errorf("%s %q prints nothing", command, more)
		}
		schema := p.schemaOf(command)
		for line := range strings.Lines(out) {
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
			if err == nil {
				err = schema.Validate(value)
			}
			if err != nil {
				t.Errorf("%s %q prints %s: %v", command, more, line, err)
			}
			if object, ok := value.(map[string]any); ok {
				if object["new-property"] = true; schema.Validate(object) == nil {
					t.Errorf("%s: the schema allows an unknown property", command)
				}
			}
		}
	}
	r := p.runShaper("--policy", policy, "--direction", "both")
	for range 20 {
		p.near.Inject("v0", placements[0].frameOf("192.0.2.1"))
		p.near.Inject("v0", placements[0].frameOf("192.0.2.99"))
	}
	check("set", "v0", "customer", "c d", "rate=2B/1000s", "--for", "1h")
	check("set", "v0", "link", "ap", "rate=30kbit")
	check("set", "v0")
	check("status")
	check("stats")
	check("stats", "--links")
	check("stats", "--customers", "--by", "rate")
	check("stats", "v0", "--customers", "a")
	check("customer add", "v0", "e", "address=192.0.2.5", "plan=ample", "idle=1h")
	check("customer list", "v0")
	check("customer show", "v0", "e")
	check("customer remove", "v0", "e")
	check("reload", "v0")
	w := p.startShaper("reload", "--confirm", "1h")
	eventually(t, func() error {
		if out, _ := p.wantExit(0, "status", "--json"); !strings.Contains(out, `"unconfirmed_until"`) {
			return fmt.Errorf("status prints %s", out)
		}
		return nil
	})
	check("status")
	check("confirm", "v0")
	w.waitForExit()
	check("detach", "v0")
	r.waitForExit()
	wait := p.startShaper("run", "absent0", "--rate", "1mbit", "--wait")
	wait.err.awaitMatch(t, "waiting for it to appear")
	check("status")
	check("detach", "absent0")
	wait.waitForExit()
}
