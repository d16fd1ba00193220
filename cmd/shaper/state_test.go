package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
)

// TestStateFile writes and reads files of state. One that is damaged, or has another content, is
// refused.
func TestStateFile(t *testing.T) {
	f := stateFlag{command: "run", dir: t.TempDir()}
	for _, content := range []string{"", "content\n"} {
		if err := f.write("v0", stateQuotas, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := f.read("v0", stateQuotas); err != nil || got == nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
	}
	if got, err := f.read("v1", stateQuotas); got != nil || err != nil {
		t.Errorf("no file: got %q, %v", got, err)
	}
	path := f.path("v0", stateQuotas)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(what string, f stateFlag, kind string, text []byte) {
		t.Helper()
		path := f.path("v0", kind)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := f.read("v0", kind); got != nil || !errors.Is(err, errState) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %q, %v", what, got, err)
		}
	}
	refuse("another kind", f, stateCustomers, text)
	refuse("another command", stateFlag{command: "tap", dir: f.dir}, stateQuotas, text)
	for i := range text {
		refuse("cut", f, stateQuotas, text[:i])
		damaged := bytes.Clone(text)
		damaged[i] ^= 1
		refuse("damaged", f, stateQuotas, damaged)
	}
}
