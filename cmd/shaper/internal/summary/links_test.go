package summary

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestSharedLinks checks that the report lists links of the policy, and not the own ones of fair queues.
func TestSharedLinks(t *testing.T) {
	t.Parallel()
	policy, err := policyfile.Source{Name: "p.yaml", Text: `
classes:
  - {name: a, match: {dscp: ef}, green: {queue: own}}
  - {name: b, match: {dscp: af11}, green: {queue: b}}
  - {name: c, green: {queue: c}}
links: {site: {rate: 2mbit}, ap: {link: site}}
queues: {own: {rate: 1mbit, limit: 1s}, b: {link: ap, limit: 1s}, c: {link: site, limit: 1s}}
`}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var states []dataplane.LinkState
	for _, l := range policy.Plan.Links {
		states = append(states, dataplane.LinkState{Name: l.Name, Above: l.Above})
	}
	if len(states) != 3 || states[0].Name != "own" {
		t.Fatalf("got %v, want three links, the first of which is the queue's", states)
	}
	got := (&Collector{policy: policy}).sharedLinks(states)
	if len(got) != 2 || got[0].Name != "site" || got[0].Above != -1 || got[1].Name != "ap" || got[1].Above != 0 {
		t.Errorf("got %+v, want site and ap below it", got)
	}
}
