package diff

import (
	"fmt"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
)

// TestEachFieldAlone checks that a difference in any single field of a policy shows, both ways.
func TestEachFieldAlone(t *testing.T) {
	t.Parallel()
	settings := 0
	for _, b := range policytest.Bases() {
		for _, s := range b.Settings() {
			if s.Field == "Meter.Name" && len(b.New().Meters) == 0 {
				continue // the meter of a class has the name of the class
			}
			if s.Field == "Customers.Cgroups" {
				continue // shows in customers that have one of them
			}
			settings++
			without, with := fileOf(t, b.New()), fileOf(t, b.With(s))
			for _, changes := range [][]Difference{Policies(without, with), Policies(with, without)} {
				if len(changes) == 0 {
					t.Errorf("%s: %v: no difference", b.Name, s)
				}
			}
		}
	}
	t.Logf("%d settings", settings)
}

// fileOf returns a policy as the file of a policy.
func fileOf(t *testing.T, p *dataplane.Policy) *policyfile.File {
	t.Helper()
	file, err := policyfile.Load("p", []byte("classes: [{name: c}]"))
	if err != nil {
		t.Fatal(err)
	}
	file.Policy = p
	return file
}

// TestFatesKnowAllFields checks that the fates of packets include every field that an action marks.
func TestFatesKnowAllFields(t *testing.T) {
	t.Parallel()
	last := dataplane.DSCP
	for f := range dataplane.Field(32) {
		if f.String() != fmt.Sprintf("Field(%d)", f) {
			last = f
		}
	}
	if names := (inFields << last).names(); len(names) != 1 || names[0] != last.String() {
		t.Errorf("got %q for a difference in field %v", names, last)
	}
}
