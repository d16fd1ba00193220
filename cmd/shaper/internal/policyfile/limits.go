package policyfile

import (
	"bytes"
	"cmp"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"go.yaml.in/yaml/v3"
)

// Limits of a policy's text. They bound the time and memory for reading it.
const (
	MaxSize   = 4 << 20             // size of the text, bytes
	maxNodes  = 1_000_000           // YAML values, counting an alias at each use
	maxParts  = compiled.MaxClasses // classes; also meters, queues, links and envelopes
	maxErrors = 100                 // maximum number of errors reported
)

// tooLarge returns the limit exceeded by a text, or "". It runs before the text is parsed: a
// separator precedes each entry of a collection, so the number of separators bounds the number of
// nodes.
func tooLarge(text []byte) string {
	if len(text) > MaxSize {
		return fmt.Sprintf(" is larger than %d MiB, the maximum", MaxSize>>20)
	}
	separators := 0
	for _, c := range []string{",", "[", "{", "\n"} {
		separators += bytes.Count(text, []byte(c))
	}
	if separators > maxNodes {
		return fmt.Sprintf(" has more than %d lines and entries", maxNodes)
	}
	return ""
}

// checkAliases counts the nodes, including the target of an alias at each use, and rejects an alias
// within itself.
func (l *loader) checkAliases(root *yaml.Node) bool {
	nodes, open := 0, map[*yaml.Node]bool{}
	var walk func(n, alias *yaml.Node) bool // alias is the outermost one on the way to n, or nil
	walk = func(n, alias *yaml.Node) bool {
		at := cmp.Or(alias, n)
		if nodes++; nodes > maxNodes {
			l.fail(at, "the %s has more than %d values, counting an alias at each use", l.what, maxNodes)
			return false
		}
		if n.Kind == yaml.AliasNode {
			if open[n.Alias] {
				l.fail(at, "alias %q contains itself", n.Value)
				return false
			}
			n, alias = n.Alias, at
		}
		if n.Anchor != "" {
			open[n] = true
			defer delete(open, n)
		}
		for _, c := range n.Content {
			if !walk(c, alias) {
				return false
			}
		}
		return true
	}
	return walk(root, nil)
}

// checkCount rejects more parts of a kind than a policy may have.
func (l *loader) checkCount(n *yaml.Node, what string) bool {
	parts := n.Content
	if n.Kind == yaml.MappingNode { // keys and values
		parts = make([]*yaml.Node, 0, len(n.Content)/2)
		for i := 0; i < len(n.Content); i += 2 {
			parts = append(parts, n.Content[i])
		}
	}
	if len(parts) > maxParts {
		l.fail(parts[maxParts], "%d %s: at most %d are allowed", len(parts), what, maxParts)
		return false
	}
	return true
}
