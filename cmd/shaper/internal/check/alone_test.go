package check

import (
	"bytes"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
)

// TestEachFieldAlone checks that any single field of a policy shows in the text and in the JSON.
func TestEachFieldAlone(t *testing.T) {
	t.Parallel()
	elsewhere := []string{
		"Match.Customer", "Class.Meter", "Customers.Plans", // not alone: policy files need all for customers
		"Policy.Meters", "Envelope.Packets", // show with the meters that classes use
		"Policy.Links",                                                            // show with the queues that use them
		"Customer.Name", "Customer.Prefixes", "Customer.IDs", "Customers.Cgroups", // there may be a million
		"Budget.Hosts",                               // until the server reports it
		"Queue.TargetAtRate", "Queue.IntervalAtRate", // where the times are from, which are printed
		"Address.PasswordFile", "Address.CAFile", "Address.CertFile", "Address.KeyFile", // paths of secrets
	}
	onlyJSON := []string{
		"Meter.Name",
		"Early.Probability",         // rounded
		"Config.Bytes",              // the text shows the one limit that policy files give
		"Config.Packets",            // likewise
		"Class.Yellow", "Class.Red", // of colors that the meter does not give
	}
	compared := map[string]bool{}
	for _, b := range policytest.Bases() {
		text, object := describe(t, b.New())
		for _, s := range b.Settings() {
			if slices.Contains(elsewhere, s.Field) {
				continue
			}
			with := b.With(s)
			_, err := compiled.Compile(with)
			if compared[s.Field] = compared[s.Field] || err == nil; err != nil {
				continue
			}
			otherText, otherObject := describe(t, with)
			ofPlan := s.Field == "Meter.Packets" && with.Customers != nil // of plans with meters
			if text == otherText && !slices.Contains(onlyJSON, s.Field) && !ofPlan {
				t.Errorf("%s: %v does not show in the text", b.Name, s)
			}
			if object == otherObject {
				t.Errorf("%s: %v does not show in the JSON", b.Name, s)
			}
		}
	}
	for field, ok := range compared {
		if !ok {
			t.Errorf("%s: no policy compiles with it alone", field)
		}
	}
	t.Logf("%d fields", len(compared))
}

// describe returns both descriptions of a policy.
func describe(t *testing.T, p *dataplane.Policy) (text, object string) {
	t.Helper()
	plan, err := compiled.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	file, err := policyfile.Load("p", []byte("classes: [{name: c}]"))
	if err != nil {
		t.Fatal(err)
	}
	file.Policy = p
	policy := &policyfile.Compiled{File: file, Plan: plan}
	var w, j bytes.Buffer
	if err := writeCheck(&w, policy, nil, 1500); err != nil {
		t.Fatal(err)
	}
	if err := writeCheckJSON(&j, policy, nil, 1500); err != nil {
		t.Fatal(err)
	}
	return w.String(), j.String()
}
