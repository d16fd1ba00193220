package live

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
)

// TestRunSet makes changes while the owner of the Changer gives it another file, as it does when the
// interface returns.
func TestRunSet(t *testing.T) {
	s := newFakeShaper(changerPolicy(t, "", "a,10.0.0.1,slow,\n"))
	c, calls, moved := &LockedChanger{Changer: newTestChanger(t, s)}, make(chan func()),
		filepath.Join(t.TempDir(), "moved")
	go func() {
		for call := range calls {
			call()
			c.Path = moved
		}
	}()
	defer close(calls)
	run := &Run{Calls: calls, Changer: c}
	target := changes.Target{Kind: changes.Customer, Name: "a"}
	fast := []changes.Change{{Target: target, Terms: changes.Terms{Plan: "fast"}}}
	if err := run.Set(fast); !errors.Is(err, ErrBusy) {
		t.Errorf("the file changed: got %v", err)
	}
	if err := run.Set(fast); err != nil {
		t.Fatal(err)
	}
	if book, _, err := changes.Read(moved); err != nil || len(book) != 1 {
		t.Errorf("the changes are %v, %v", book, err)
	}
}
