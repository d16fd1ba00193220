package process

import (
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// printAttached prints how a shaper is attached.
func (k *kernelPlane) printAttached(sh *kernel.Shaper, changes []compiled.ClassChange) {
	p, name := k.print(), live.Name(&sh.About)
	p.Printf("%s: attached by %s, program %d, kernel %s, policy %s (%s)\n",
		name, live.Hook(&sh.About), sh.Program, live.KernelRelease(), k.policy.Name,
		say.Count(len(sh.Outline.Classes), "class"))
	if sh.Place.Mode == kernel.Generic {
		p.Printf("%s: the driver does not support XDP: the kernel's generic XDP is slower than tc\n", name)
	}
	if sh.Pacer != "" {
		p.Printf("%s: packets are queued in %s\n", name, live.Pacer(&sh.About))
	}
	live.PrintGSO(p, &sh.About)
	if k.options.Dry {
		p.Printf("%s: dry run: packets are counted, not changed\n", name)
	}
	live.PrintClasses(p, &sh.About, changes)
	if !k.deadline.rollback.IsZero() {
		p.Printf("%s: rolls back in %v unless you run shaper confirm %s\n",
			name, k.confirm, sh.Interface)
	}
}

// printEnd prints the counters of a shaper, and whether it stays attached.
func (k *kernelPlane) printEnd(sh *kernel.Shaper, stays bool, failed error) error {
	if !k.alone {
		if stays || failed == nil {
			k.warn("%s: %s", live.Name(&sh.About), map[bool]string{true: "still attached", false: "detached"}[stays])
		}
		return nil
	}
	p := k.print()
	stats, err := sh.Stats()
	if err == nil {
		p.Table(say.Counters(&sh.Outline, stats, k.colored))
	}
	if queues, err := sh.Queues(); err == nil && live.Unassigned(queues) > 0 {
		n := say.Grouped(live.Unassigned(queues))
		p.Printf("%s more packets were dropped in queues that several classes use\n", n)
	}
	switch {
	case stays:
		p.Printf("%s: still attached; shaper detach %s removes it\n", live.Name(&sh.About), sh.Interface)
	case failed == nil:
		live.PrintDetached(p, &sh.About)
	}
	return err
}
