package registry

import (
	"fmt"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
)

// twice returns a warning if two users charge a packet that this host forwards twice, at the ingress of
// an interface and at the egress of another, or "". They are in the network namespace here, the current
// one. If only is not nil, it is true for one of the two.
func (b *Budget) twice(here uint64, only func(User) bool) string {
	var found []string
	for i := range b.Users {
		for k := range b.Users {
			in, out := &b.Users[i], &b.Users[k]
			if in.Direction != dataplane.Ingress || out.Direction != dataplane.Egress ||
				in.Interface == out.Interface || in.Once && out.Once ||
				in.Namespace != here || out.Namespace != here ||
				only != nil && !only(*in) && !only(*out) || !iface.Forwards(in.Interface, out.Interface) {
				continue
			}
			found = append(found, fmt.Sprintf("budget %s charges a packet twice that is forwarded from %s to %s: %s",
				b.Name, in.Interface, out.Interface, chargeOnce(in, out)))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return slices.Min(found)
}

// chargeOnce is the remedy of a warning.
func chargeOnce(in, out *User) string {
	for _, u := range []*User{in, out} {
		if u.inUserSpace() {
			return fmt.Sprintf("shaper tap cannot charge it once: use the budget at %s or at %s only", in.name(),
				out.name())
		}
	}
	where := "both policies"
	switch {
	case in.Once:
		where = "the policy of " + out.name()
	case out.Once:
		where = "the policy of " + in.name()
	}
	return fmt.Sprintf("write count: once below share: in %s", where)
}

// twiceHere is twice for the current network namespace.
func (b *Budget) twiceHere() string {
	here, err := iface.CurrentNamespace()
	if err != nil {
		return ""
	}
	return b.twice(here, nil)
}
