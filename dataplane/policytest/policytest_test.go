package policytest

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// TestAllFieldsAreSet checks that some setting sets each field.
func TestAllFieldsAreSet(t *testing.T) {
	for _, b := range Bases() {
		if _, err := compiled.Compile(b.New()); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}
		t.Logf("%s: %d settings", b.Name, len(b.Settings()))
	}
	if fields := Unset(); fields != nil {
		t.Errorf("no base sets %q", fields)
	}
}
