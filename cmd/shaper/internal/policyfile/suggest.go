package policyfile

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/spelling"
)

// maxSuggestions is the maximum number of unknown names for which a loader suggests others, because a file
// of customers may have a million.
const maxSuggestions = 100

// didYouMean returns a question about an unknown name of a kind, with the nearest known one; "" if none is
// near.
func (l *loader) didYouMean(kind, name string, names func() []string) string {
	key := kind + " " + name
	text, known := l.suggested[key]
	if known || len(l.suggested) == maxSuggestions {
		return text
	}
	text = spelling.Question(spelling.Nearest(name, names()))
	if l.suggested == nil {
		l.suggested = map[string]string{}
	}
	l.suggested[key] = text
	return text
}

// noPlan is the error for an unknown plan of a change.
func (l *loader) noPlan(name string) error {
	return fmt.Errorf("no plan named %q in the policy%s", name, spelling.DidYouMean(name, l.planNames()))
}

// PlanNames returns the names of the plans of customers, in the order of the file.
func (c *Compiled) PlanNames() []string { return c.loader.planNames() }

// OwnNames returns the names of the parameters that customers may have of their own, sorted.
func (c *Compiled) OwnNames() []string {
	names := map[string]bool{}
	for _, p := range c.loader.plans {
		for _, name := range p.own {
			names[name] = true
		}
	}
	return sorted(names)
}

// planNames returns the names of the plans, in the order of the file.
func (l *loader) planNames() (names []string) {
	for _, p := range l.plans {
		names = append(names, p.Name)
	}
	return names
}
