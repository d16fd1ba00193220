package image

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
)

// outsideImages are fields that have an effect, but not on the image that programs read when a policy is
// loaded, nor on the tree of HTB. Some are of one base.
var outsideImages = []string{
	"Policy.Meters", "Policy.Queues", "Customers.Plans", // lists of parts that have a name
	"TokenBucket.GCRA",                           // the name of a token bucket
	"Meter.Initial",                              // tokens of a new state
	"Meter.Keys",                                 // size of a table
	"Queue.TargetAtRate", "Queue.IntervalAtRate", // read when a rate changes
	"Meter.Budget", "Budget.Interval", "Budget.Rescue", "Budget.Weight", "Budget.Hosts", // of registry and agent
	"Address.URL", "Address.PasswordFile", "Address.CAFile", "Address.CertFile", "Address.KeyFile",
	"fair: Queue.Priority", "fair: Queue.Weight", "fair: Queue.Guarantee", // of the only queue of a link
	"Customers.Key", "Customers.Nested", "Customers.List", // in maps of their own, like the next ones
	"Customer.Prefixes", "Customer.IDs",
}

// TestEachFieldAlone checks that each field of a policy changes what the programs read, or the tree of HTB,
// or is refused.
func TestEachFieldAlone(t *testing.T) {
	t.Parallel()
	encoded, refused := 0, 0
	for _, b := range policytest.Bases() {
		pacer := record.FQ
		without := imageOf(t, b.New(), pacer)
		if without == nil {
			pacer = record.HTB
			without = imageOf(t, b.New(), pacer)
		}
		for _, s := range b.Settings() {
			with := imageOf(t, b.With(s), pacer)
			switch {
			case with == nil:
				refused++
				continue
			case strings.HasSuffix(s.Field, ".Name"), slices.Contains(outsideImages, s.Field),
				slices.Contains(outsideImages, b.Name+": "+s.Field):
			case reflect.DeepEqual(with, without):
				t.Errorf("%s: %v: no effect", b.Name, s)
			}
			encoded++
		}
	}
	t.Logf("encoded %d, refused %d", encoded, refused)
}

// picture is an image and its tree of HTB.
type picture struct {
	*Image
	tree *qdisc.Tree
	up   *picture // of the other direction; nil: the plan is the same
}

// imageOf returns the image of a policy without its plan, or nil if it is refused.
func imageOf(t *testing.T, p *dataplane.Policy, pacer record.Pacer) *picture {
	t.Helper()
	plan, err := compiled.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	both := pictureOf(plan, pacer)
	if both != nil && plan.Up != nil {
		if both.up = pictureOf(plan.Up, pacer); both.up == nil {
			return nil
		}
	}
	return both
}

func pictureOf(plan *compiled.Plan, pacer record.Pacer) *picture {
	out, err := Encode(plan, EgressEntry, pacer)
	if err != nil {
		return nil
	}
	both := &picture{Image: out}
	if pacer == record.HTB {
		out.Inherit(&record.About{}, nil)
		both.tree = out.Tree(&iface.Device{MTU: 1500, LinkType: dataplane.LinkEthernet})
	}
	out.Plan, out.source = nil, nil
	return both
}
