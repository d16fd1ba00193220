package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// ErrSeveralRuns reports that the shapers of an interface belong to several commands, which keep
// their changes apart.
var ErrSeveralRuns = errors.New(
	"its directions were started by separate commands: choose one with --direction")

// ErrNoProcess reports that there is no process to end a change in time.
var ErrNoProcess = errors.New("--for needs a process, which ends the change: the shaper runs without one")

// Set makes changes in the shapers of one interface, all or none: by their process, or by this one if
// they are pinned and have none. The error wraps *changes.UnkeptError if they are in force nevertheless.
func Set(list []Handle, what []changes.Change) error {
	path, process := "", (*kernel.About)(nil)
	for i, sh := range list {
		k, err := sh.keeper()
		switch {
		case err != nil:
			return err
		case i == 0 && k.tap != nil:
			return setBy(what, k.tap)
		case i > 0 && k.path != path:
			return ErrSeveralRuns
		}
		path = k.path
		if k.process != 0 {
			process = sh.Info()
		}
	}
	if process != nil {
		client := connectRun(process)
		if client == nil {
			return fmt.Errorf("process %d does not answer", process.Process)
		}
		defer client.Close()
		return setBy(what, client)
	}
	if slices.ContainsFunc(what, func(c changes.Change) bool { return !c.Until.IsZero() }) {
		return ErrNoProcess
	}
	return setHere(inKernel(list), path, what)
}

// keeper describes who makes the changes of a shaper, and where they are kept.
type keeper struct {
	tap     *caller // of a shaper tap; nil: the shaper is in the kernel
	path    string  // file of changes
	process int     // ID of the process making them; 0: none
}

// setTimeout is the time to wait for a process making changes. A reload by another process delays
// them.
const setTimeout = 10 * time.Second

// errSetLate reports that a process did not answer within setTimeout.
var errSetLate = fmt.Errorf("the process has not answered for %v, and may still make the change: shaper set IFACE lists those in force",
	setTimeout)

// setBy makes changes by another process.
func setBy(what []changes.Change, client *caller) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	client.within(setTimeout)
	var reply setReply
	err = client.call("Set", json.RawMessage(text), &reply)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errSetLate
	case err == nil && reply.Unkept != "":
		return &changes.UnkeptError{Err: errors.New(reply.Unkept)}
	}
	return err
}

// setHere makes changes in pinned shapers.
func setHere(list []*kernel.Shaper, path string, what []changes.Change) error {
	return changeHere(list, path, func(c *Changer) error { return c.Set(what) })
}

// changeHere calls do with a Changer of pinned shapers, with the lock of their file.
func changeHere(list []*kernel.Shaper, path string, do func(*Changer) error) error {
	if path == "" {
		return errors.New("the shaper was attached by another version, which keeps no changes: reload it")
	}
	lock, err := changes.Lock(path)
	if err != nil {
		return err
	}
	defer lock.Close()
	file, err := changes.Open(path)
	if err != nil {
		return err
	}
	file.Required = true // nothing else knows the changes
	var shapers []Changeable
	for _, sh := range list {
		shapers = append(shapers, &compiledHere{Shaper: sh})
	}
	c := NewChanger(file, func() []Changeable { return shapers })
	if c.customersErr != nil {
		return c.customersErr
	}
	return do(c)
}

// compiledHere is a shaper whose policy this process compiles.
type compiledHere struct {
	*kernel.Shaper
	policy *policyfile.Compiled // nil until it is needed
	loaded time.Time            // of the policy
}

func (c *compiledHere) Policy() (*policyfile.Compiled, error) {
	if c.policy == nil || !c.loaded.Equal(c.Loaded) {
		policy, err := policyfile.CompileLabel(c.Label)
		if err != nil {
			return nil, err
		}
		c.policy, c.loaded = policy, c.Loaded
	}
	return c.policy.Current(), nil
}

// Roster returns the customers of the policy.
func (c *compiledHere) Roster() (*policyfile.Roster, error) {
	policy, err := c.Policy()
	if err != nil {
		return nil, err
	}
	return policy.Roster(), nil
}

// HasRules returns false: without a process no rules are followed.
func (c *compiledHere) HasRules() bool { return false }

// CountersOf returns the counters of the customers of a plan.
func (c *compiledHere) CountersOf(plan *compiled.Customers) ([]dataplane.CustomerStats, error) {
	return c.Customers(plan)
}

// Replace reloads the shaper.
func (c *compiledHere) Replace(policy *policyfile.Compiled) error { return Replace(c.Shaper, policy) }

// Replace reloads a shaper with its policy and other changes.
func Replace(sh *kernel.Shaper, policy *policyfile.Compiled) error {
	_, err := sh.Reload(policy.Plan, Label(policy, sh.Interface), sh.Until)
	return err
}
