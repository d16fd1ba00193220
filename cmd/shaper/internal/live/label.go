package live

import (
	"encoding/json"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Label returns the label of a shaper in the kernel with a policy. It mentions the copy of a
// large file of customers, which Keep makes.
func Label(policy *policyfile.Compiled, iface string) json.RawMessage {
	if c := policy.Source.Customers; c.Large() {
		if path, err := kernel.TextPath(iface, c.SHA256); err == nil { // otherwise attaching will fail, too
			c.Copy = path
		}
	}
	return policy.Label()
}

// Keep copies the file of customers of the policy that a shaper was just given, so that a
// rollback to it does not depend on the file.
func Keep(sh Shaper, policy *policyfile.Compiled) error {
	c := policy.Source.Customers
	k, ok := sh.(*kernel.Shaper)
	if !ok || !c.Large() {
		return nil
	}
	text, err := c.Read()
	if err != nil {
		return err
	}
	return k.KeepText(c.SHA256, text)
}
