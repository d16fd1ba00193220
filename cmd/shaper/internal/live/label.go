package live

import (
	"encoding/json"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Label returns the label of a shaper in the kernel with a policy. It mentions the copy of a
// large file of customers, which KeepCustomers makes.
func Label(policy *policyfile.Compiled, iface string) json.RawMessage {
	if c := policy.Source.Customers; c.Large() {
		if path, err := kernel.TextPath(iface, c.SHA256); err == nil { // otherwise attaching will fail, too
			c.Copy = path
		}
	}
	return policy.Label()
}

// PolicyName returns the name of a shaper's policy, or "" if its record has none.
func PolicyName(about *kernel.About) string {
	source, _ := policyfile.SourceOf(about.Label)
	return source.Name
}
