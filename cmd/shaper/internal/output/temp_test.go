package output

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNewTemp checks that a temporary file is new and hidden, and in temps until forgetTemp.
func TestNewTemp(t *testing.T) {
	dir := t.TempDir()
	a, err := newTemp(dir, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := newTemp(dir, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if a.Name() == b.Name() || !strings.HasPrefix(filepath.Base(a.Name()), ".") {
		t.Errorf("names %q and %q", a.Name(), b.Name())
	}
	for _, f := range []*os.File{a, b} {
		if temps.files[f.Name()] != f {
			t.Errorf("%s is not known", f.Name())
		}
		forgetTemp(f.Name())
		if _, known := temps.files[f.Name()]; known {
			t.Errorf("%s is not forgotten", f.Name())
		}
	}
	if _, err := newTemp(filepath.Join(dir, "missing"), 0o600); err == nil || len(temps.files) > 0 {
		t.Errorf("%v, known are %v", err, temps.files)
	}
}
