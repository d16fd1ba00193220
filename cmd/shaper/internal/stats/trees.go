package stats

import (
	"fmt"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Tree is a link without a link above it, with the links and queues below.
type Tree struct {
	Root   string `json:"root"`
	Links  int    `json:"links"`  // below the root
	Queues int    `json:"queues"` // of actions; those of customers are not counted
}

// treesOf returns the trees in which a shaper queues packets; none in a dry run in the kernel.
func treesOf(about *kernel.About) []Tree {
	if !live.IsTap(about) && about.Pacer != kernel.HTB {
		return nil
	}
	return treesIn(&about.Outline)
}

// treesIn returns the trees of a policy, except for fair queues alone on a link of their own name.
func treesIn(o *compiled.Outline) (out []Tree) {
	roots := make([]int, len(o.Links))
	all, only := make([]Tree, len(o.Links)), make([]string, len(o.Links))
	for i, name := range o.Links {
		roots[i] = i
		if above := o.LinkAbove(i); above >= 0 { // listed before
			roots[i] = roots[above]
			all[roots[i]].Links++
		}
		all[i].Root = name
	}
	for _, q := range o.Queues {
		if q.Link >= 0 {
			all[roots[q.Link]].Queues++
			only[roots[q.Link]] = q.Name
		}
	}
	for i, t := range all {
		own := t.Links == 0 && t.Queues == 1 && only[i] == t.Root && o.Customers == 0
		if o.LinkAbove(i) < 0 && !own {
			out = append(out, t)
		}
	}
	return out
}

// shownTrees is the number of trees in status for people.
const shownTrees = 5

// printTrees prints trees on one line.
func printTrees(p *say.Printer, trees []Tree) {
	if len(trees) == 0 {
		return
	}
	var parts []string
	for i, t := range trees {
		if i == shownTrees {
			parts = append(parts, fmt.Sprintf("%d more", len(trees)-i))
			break
		}
		below := say.Count(t.Queues, "queue")
		if t.Links > 0 {
			below = say.Count(t.Links, "link") + ", " + below
		}
		parts = append(parts, fmt.Sprintf("%s (%s)", t.Root, below))
	}
	p.Printf("  links    %s\n", strings.Join(parts, ", "))
}
