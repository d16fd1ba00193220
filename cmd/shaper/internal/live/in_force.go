package live

import (
	"encoding/json"
	"iter"
	"maps"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// Changes are the changes in shapers of one command.
type Changes struct {
	changes.Book
	Interrupted []changes.Target // perhaps not in force: a process was killed while it made them
	Problem     string           // why changes, quotas or schedules do not work, or are not kept; "": they do
	Customers   CustomerCounts   // customers added and removed
}

// changesReply are Changes as one process tells them another.
type changesReply struct {
	List      json.RawMessage // of changes.Change
	Problem   string
	Customers CustomerCounts
}

func (c *Changes) reply() (out changesReply, err error) {
	out.Problem, out.Customers = c.Problem, c.Customers
	out.List, err = json.Marshal(slices.Collect(c.All()))
	return out, err
}

// read returns the Changes of a reply.
func (r *changesReply) read() (Changes, error) {
	var list []changes.Change
	err := json.Unmarshal(r.List, &list)
	book := changes.Book{}
	for _, c := range list {
		book.Apply(c)
	}
	return Changes{Book: book, Problem: r.Problem, Customers: r.Customers}, err
}

// InForce is a change in force in one shaper.
type InForce struct {
	changes.Change
	Policy changes.Terms // terms of the replaced policy
	State  string        // "", or why the shaper may not be as the change says
}

// Differs reports whether the policy has other terms.
func (f *InForce) Differs() bool {
	if f.IsOff() || f.Plan != "" && f.Plan != f.Policy.Plan {
		return true
	}
	for name, text := range f.Parameters {
		if text == f.Policy.Parameters[name] {
			continue
		}
		want, err := policyfile.ParseRate(text)
		inPolicy, set := f.Policy.Parameters[name]
		if !set {
			inPolicy = f.Policy.Parameters[changes.ForBoth(name)]
		}
		own, ownErr := policyfile.ParseRate(inPolicy)
		if err != nil || ownErr != nil || want != own {
			return true
		}
	}
	return false
}

// The states of changes.
const (
	StateEnded       = "ended, still in force"
	StateInterrupted = "interrupted, perhaps not in force"
	StateHidden      = "not in force while the next change or the quota is"
)

// States yields all changes by target, each with the reason why the shaper may not follow it, or with ""
// if the shaper does.
func (c *Changes) States(now time.Time) iter.Seq2[changes.Change, string] {
	return func(yield func(changes.Change, string) bool) {
		interrupted := map[changes.Target]bool{}
		for _, t := range c.Interrupted {
			interrupted[t] = true
		}
		for _, t := range c.Targets() {
			list := c.Of(t)
			for i := range list {
				change, state := list[i], ""
				switch {
				case interrupted[t]:
					state = StateInterrupted
				case !change.Until.IsZero() && !now.Before(change.Until):
					state = StateEnded
				case change.HiddenBy(list[i+1:]):
					state = StateHidden
				}
				if !yield(change, state) {
					return
				}
			}
			delete(interrupted, t)
		}
		for _, t := range slices.SortedFunc(maps.Keys(interrupted), changes.Target.Compare) { // a reset
			if !yield(changes.Change{Target: t, Reset: true}, StateInterrupted) {
				return
			}
		}
	}
}

// InForce returns the users' changes that a policy can use, by target, and the number of customers
// who have used their quota.
func (c *Changes) InForce(policy *policyfile.Compiled, now time.Time) (out []InForce, overQuota int) {
	for change, state := range c.States(now) {
		own, err := policy.Own(change.Target)
		switch {
		case err != nil:
		case change.By != changes.ByQuota:
			maps.DeleteFunc(own.Parameters, func(name, _ string) bool {
				_, changed := change.Parameters[name]
				return !changed && (name != "rate" || change.Parameters != nil)
			})
			out = append(out, InForce{change, own, state})
		case state != StateEnded:
			overQuota++
		}
	}
	return out, overQuota
}

// ChangeCounts are the numbers of changes in force in one shaper.
type ChangeCounts struct {
	Users   int       // by shaper set and the API
	Quotas  int       // customers who have used their quota
	Problem string    // as in Changes
	Added   int       // customers added or replaced while the shaper runs
	Oldest  time.Time // of the first of Users with a known time; zero for none
}

// Count returns the numbers of changes that a policy can use.
func (c *Changes) Count(policy *policyfile.Compiled, now time.Time) ChangeCounts {
	out := ChangeCounts{Problem: c.Problem, Added: c.Customers.Added}
	for t := range c.Book {
		if _, err := policy.Own(t); err != nil {
			continue
		}
		for _, change := range c.Of(t) {
			switch {
			case change.By != changes.ByQuota:
				out.Users++
				if at := change.Since; !at.IsZero() && (out.Oldest.IsZero() || at.Before(out.Oldest)) {
					out.Oldest = at
				}
			case now.Before(change.Until):
				out.Quotas++
			}
		}
	}
	return out
}

// UserName returns the name of a user, or the ID if there is no such user.
func UserName(id int) string {
	text := strconv.Itoa(id)
	if u, err := user.LookupId(text); err == nil {
		return u.Username
	}
	return text
}

// Author returns who makes a change by this process. with is the tool.
func Author(with string) changes.Author {
	name := UserName(os.Geteuid())
	if by := os.Getenv("SUDO_USER"); by != "" && by != name {
		name = by + " as " + name
	}
	return changes.Author{User: name, With: with}
}
