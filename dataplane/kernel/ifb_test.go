package kernel

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
)

// TestIFBUndone checks that removing the ifb restores the interface, also if it was added twice
// or removed twice, and that no ifb outlives the interface.
func TestIFBUndone(t *testing.T) {
	t.Parallel()
	for _, script := range []string{
		"",
		"tc qdisc add dev v0 clsact",
		"tc qdisc add dev v0 ingress",
		"tc qdisc add dev v0 clsact && tc filter add dev v0 ingress pref 2 protocol ip u32 match u32 0 0 action mirred egress mirror dev lo",
	} {
		t.Run(script, func(t *testing.T) {
			w := newWire(t)
			if script != "" {
				w.Far.Run("sh", "-c", script)
			}
			before := w.farShown()
			i, _ := w.addIFB()
			during := w.farShown()
			for _, text := range []string{
				"pref 1 u32", "Redirect to device " + hook.IFBName(i), "mtu 1500", "state U",
			} {
				if !strings.Contains(during, text) {
					t.Errorf("got\n%s\nwant %q in it", during, text)
				}
			}
			w.addIFB() // as a process that starts after another was killed
			if got := w.farShown(); strings.Count(got, "Redirect to") != 1 {
				t.Errorf("added twice: got\n%s\nwant one redirect", got)
			}
			for range 2 {
				w.removeIFB(i)
				if after := w.farShown(); after != before {
					t.Errorf("after removal: got\n%s\nwant\n%s", after, before)
				}
			}
			w.addIFB()
			w.Far.Delete("v0")
			w.removeIFB(i)
			if got := w.Far.Run("ip", "-o", "link", "show", "type", "ifb"); got != "" {
				t.Errorf("after the interface was deleted: got %s, want no ifb", got)
			}
		})
	}
}

// TestIFBClsact checks that a clsact qdisc that shaper added is removed with its last user.
func TestIFBClsact(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	before := w.farShown()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	index := w.Far.Index("v0")
	w.inFar(func() error {
		return changeSite(index, func(st *site) error {
			h, _, err := st.attachFilter(&iface.Device{Name: "v0", ID: st.ID}, program, false)
			if err != nil {
				return err
			}
			_, err = st.addIFB()
			return errors.Join(err, h.Remove(), st.removeIFB())
		})
	})
	if after := w.farShown(); after != before {
		t.Errorf("after removal: got\n%s\nwant\n%s", after, before)
	}
}

// TestIFBRefused checks that nothing changes if another filter has the needed priority.
func TestIFBRefused(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.Far.Run("tc", "qdisc", "add", "dev", "v0", "clsact")
	w.Far.Run("tc", "filter", "add", "dev", "v0", "ingress", "pref", "1", "protocol", "ip", "u32", "match",
		"u32", "0", "0", "action", "mirred", "egress", "mirror", "dev", "lo")
	before := w.farShown()
	var err error
	index := w.Far.Index("v0")
	w.Far.Do(func() {
		err = changeSite(index, func(st *site) error {
			_, err := st.addIFB()
			return err
		})
	})
	want := "interface v0 has a u32 filter with priority 1 at ingress, but our redirect needs that priority: give the other filter a higher number, or remove it: tc filter del dev v0 ingress pref 1"
	if fmt.Sprint(err) != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	if after := w.farShown(); after != before {
		t.Errorf("after removal: got\n%s\nwant\n%s", after, before)
	}
}
