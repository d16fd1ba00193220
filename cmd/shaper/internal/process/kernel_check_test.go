//go:build linux

package process

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestRenamedDuringCheck checks that a new name of the interface is reported once, also if another part of
// a check noticed it before.
func TestRenamedDuringCheck(t *testing.T) {
	near, far := nettest.New(t), nettest.New(t)
	near.Veth(far)
	policy, err := policyfile.Source{
		Name: "--meter", One: &policyfile.OneLiner{Meter: "token-bucket rate=1gbit burst=1MiB"},
	}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	o := &RunOptions{Options: Options{
		Directions: cli.Directions{List: []dataplane.Direction{kernel.Egress, kernel.Ingress}},
	}}
	r := newKernelPlane(newProcess(cli.Streams{Out: &out, Err: &errs}), notifier{}, o, "v0", policy)
	near.Do(func() {
		if err := r.attach(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			for _, sh := range r.list {
				if err := sh.Detach(); err != nil {
					t.Error(err)
				}
			}
		}()
		_, stop := r.watchdog.poll(time.Hour)
		defer stop()
		for _, name := range []string{"wan0", "wan1"} {
			near.Run("ip", "link", "set", r.name, "name", name)
			for _, sh := range r.list {
				if gone, err := sh.Gone(); gone || err != nil || sh.Interface != name {
					t.Fatalf("gone %v, %v, name %s, want %s", gone, err, sh.Interface, name)
				}
			}
			for range 2 {
				if got := r.checkAll(); got != attached || r.name != name {
					t.Fatalf("check: %v with name %s, want %s", got, r.name, name)
				}
			}
		}
	})
	if err := r.err.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "shaper: v0 is now called wan0\nshaper: wan0 is now called wan1\n"; !strings.Contains(
		errs.String(), want) ||
		strings.Count(errs.String(), "is now called") != 2 {
		t.Errorf("got %q, want %q once", errs.String(), want)
	}
}
