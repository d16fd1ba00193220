package registry

import (
	"encoding/json"
	"testing"
)

// TestLabels gives the last labels to budgets: they differ from all others, fit into a note, and end with
// 0, with which a budget charges each packet. A registry with equal or larger ones is refused.
func TestLabels(t *testing.T) {
	b := &Locked{}
	seen := map[uint16]bool{}
	add := func(label uint16) {
		if label == 0 || label > 1<<14-1 || seen[label] {
			t.Fatalf("label %d after %d others", label, len(seen))
		}
		seen[label] = true
		b.Budgets = append(b.Budgets, &Budget{Label: label, Users: []User{{File: "x"}}})
	}
	for label := uint16(1); label <= maxLabel; label++ {
		if label%4096 != 1 {
			add(label)
		}
	}
	for range 4 {
		add(b.newLabel())
	}
	if label := b.newLabel(); label != 0 {
		t.Errorf("label %d, but all are in use", label)
	}
	for _, label := range []uint16{b.Budgets[0].Label, maxLabel + 1} {
		b.Budgets[1].Label = label
		text, err := json.Marshal(b.registry)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseRegistry(text); err == nil {
			t.Errorf("a registry with label %d was accepted", label)
		}
	}
}
