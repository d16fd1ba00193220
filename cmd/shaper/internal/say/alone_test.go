package say

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestEachFieldAlone checks that any single field shows in the description of its part. Left out are
// fields that callers print: names, limits of the flows of an envelope, and the meters of a chain.
func TestEachFieldAlone(t *testing.T) {
	t.Parallel()
	elsewhere := []string{
		"Meter.Name", "Meter.CIRMax", "Meter.EIRMax", "Meter.Then", "Queue.Name", "Link.Name",
		"Envelope.CIRMax", "Envelope.EIRMax", "Envelope.Packets", "Envelope.Coupling",
		"Queue.TargetAtRate", "Queue.IntervalAtRate", // whether the printed times follow the rate
		"Budget.Hosts",                                                                  // before the server's report
		"Address.PasswordFile", "Address.CAFile", "Address.CertFile", "Address.KeyFile", // paths of secrets
	}
	described := []string{
		"LengthRule.", "Match.", "Range.", "Action.", "Meter.", "PreColor.", "Key.", "Budget.", "Address.",
		"Queue.", "Link.", "Upward.",
	}
	for _, k := range meter.Kinds() {
		described = append(described, strings.TrimPrefix(fmt.Sprintf("%T.", k.Info().Defaults), "meter."))
	}
	shown := map[string]bool{}
	for _, b := range policytest.Bases() {
		for _, s := range b.Settings() {
			if !slices.ContainsFunc(described,
				func(d string) bool { return strings.HasPrefix(s.Field, d) }) ||
				slices.Contains(elsewhere, s.Field) {
				continue
			}
			shown[s.Field] = true
			if text := describe(b.New()); text == describe(b.With(s)) && b.New().Customers == nil {
				t.Errorf("%s: %v does not show in\n%s", b.Name, s, text)
			}
		}
	}
	t.Logf("%d fields", len(shown))
}

// describe writes the parts of a policy.
func describe(p *dataplane.Policy) string {
	var out strings.Builder
	fmt.Fprintln(&out, Length(p.Length))
	for i := range p.Classes {
		c := &p.Classes[i]
		fmt.Fprintln(&out, Match(&c.Match))
		for m := c.Meter; m != nil && m.Params != nil; m = m.Then {
			fmt.Fprintln(&out, m.Params.Kind(), Mode(m), Meter(m), m.Packets)
		}
		for color := range meter.Red + 1 {
			fmt.Fprintln(&out, Action(c.Action(color)))
			if q := c.Action(color).Queue; q != nil {
				fmt.Fprintln(&out, Queue(q, p.Queues))
			}
		}
	}
	for _, l := range p.Links {
		fmt.Fprintln(&out, LinkParts(l))
	}
	return out.String()
}
