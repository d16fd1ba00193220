package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// runFlags are the flags of shaper run.
type runFlags struct {
	policyFlags
	directions
	hook, pacer  string
	pin, dry     bool
	background   bool
	span         time.Duration
	confirm      time.Duration
	metrics      string
	gso          uint32
	policy       *compiled
	guard        *guard
	confirmUntil time.Time

	lock     sync.Mutex // of attached: metrics are read meanwhile
	attached []*kernel.Shaper
}

func newRun(s streams) *cobra.Command {
	f := runFlags{directions: directions{[]kernel.Hook{kernel.Egress}}}
	cmd := &cobra.Command{
		Use:     "run IFACE",
		GroupID: "shape",
		Short:   "Shape live traffic on an interface, in the kernel",
		Long: `Attach a policy to an interface and shape what leaves through it, or what comes in.
shaper stays in the foreground and detaches when it ends; with --pin it leaves the
policy at work. Either way shaper stats, reload, confirm and detach find it from
elsewhere, and SIGHUP reads the policy file again. It needs root, or CAP_NET_ADMIN,
CAP_BPF and CAP_PERFMON.`,
		Example: `  shaper run eth0 --policy docs/uplink.yaml
  shaper run eth0 --direction ingress --dry-run --meter "token-bucket rate=50mbit burst=1MiB"
  shaper run eth0 --policy docs/uplink.yaml --pin --confirm 60s`,
		Args: oneArg("interface"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), s, args[0]) },
	}
	f.policyFlags.add(cmd)
	flags := cmd.Flags()
	flags.Var(&f.directions, "direction", "shape one `DIRECTION` or both: egress, ingress or both; each has meters of its own")
	flags.StringVar(&f.hook, "hook", "auto", "attach by `HOOK`: tcx, tc or xdp (ingress only); auto is tcx, or tc before kernel 6.6")
	flags.StringVar(&f.pacer, "pacer", "auto", "have queued packets wait in `QDISC`: fq (departure times) or htb; auto is fq where the kernel has it and no link needs htb")
	flags.BoolVar(&f.pin, "pin", false, "go on shaping when shaper ends")
	flags.BoolVar(&f.background, "background", false, "return when the policy is at work, which stays: --pin, and no process")
	flags.BoolVar(&f.dry, "dry-run", false, "count what would happen, and touch no packet")
	flags.Var(newSpan(&f.span, 0), "for", "detach after `TIME`")
	flags.Var(newSpan(&f.confirm, 0), "confirm", "go back to what was before unless shaper confirm comes within `TIME`")
	flags.StringVar(&f.metrics, "metrics", "", "serve Prometheus metrics at `ADDRESS`, such as 127.0.0.1:9090; without a host: loopback only")
	flags.Uint32Var(&f.gso, "gso-limit", 0, "let the stack hand down at most `BYTES` at once; restored at the end")
	return cmd
}

func (f *runFlags) run(ctx context.Context, s streams, name string) (err error) {
	switch f.hook {
	case "auto", "tcx", "tc", "xdp":
	default:
		return usagef("--hook %q: want auto, tcx, tc or xdp", f.hook)
	}
	switch f.pacer {
	case "auto":
		f.pacer = ""
	case "fq", "htb":
	default:
		return usagef("--pacer %q: want auto, fq or htb", f.pacer)
	}
	switch {
	case f.span < 0 || f.confirm < 0:
		return usagef("--for and --confirm must be above zero")
	case f.background && (f.span > 0 || f.confirm > 0 || f.metrics != ""):
		return usagef("--background leaves no process for --for, --confirm or --metrics")
	case f.hook == "xdp" && f.directions.String() != "ingress":
		return usagef("--hook xdp sees only what comes in: add --direction ingress")
	case f.gso != 0 && (f.gso < 1500 || f.gso > 524280):
		return usagef("--gso-limit %d: want 1500 to 524280 bytes", f.gso)
	}
	if f.policy, err = f.load(); err != nil {
		return err
	}
	f.pin = f.pin || f.background
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	if f.metrics != "" {
		server, err := serveMetrics(s, f.metrics, f.each)
		if err != nil {
			return err
		}
		defer server.Close()
	}
	defer func() { err = errors.Join(err, f.end(s)) }()
	if err := f.attach(s, name); err != nil {
		return err
	}
	if f.background {
		closeAll(f.attached)
		f.attached = nil
		return nil
	}
	return f.watch(ctx, s, name, hup)
}

// each calls g for each shaper.
func (f *runFlags) each(g func(live) error) error {
	f.lock.Lock()
	defer f.lock.Unlock()
	for _, sh := range f.attached {
		if err := errors.Join(sh.Refresh(), g(sh)); err != nil {
			return err
		}
	}
	return nil
}

// attach attaches the policy in each direction.
func (f *runFlags) attach(s streams, name string) error {
	f.lock.Lock()
	defer f.lock.Unlock()
	old, err := kernel.List()
	if err != nil && !errors.Is(err, os.ErrPermission) { // without CAP_SYS_ADMIN nothing was found
		return err
	}
	defer closeAll(old)
	if f.confirm > 0 {
		f.confirmUntil = time.Now().Add(f.confirm)
	}
	for _, direction := range f.directions.list {
		var before *kernel.Before
		for _, o := range old {
			if o.Interface == name && o.Direction == direction {
				before = o.Now()
			}
		}
		sh, changes, err := kernel.Attach(kernel.Config{
			Interface: name, Direction: direction, Method: kernel.Method(f.hook), Pacer: kernel.Pacer(f.pacer),
			Dry: f.dry, Pin: f.pin, GSOLimit: f.gso, Label: labelOf(f.policy),
		}, f.policy.Policy)
		if err != nil {
			return f.policy.explain(err)
		}
		f.attached = append(f.attached, sh)
		if err := f.protect(name); err != nil {
			return err
		}
		if f.confirm > 0 {
			if err := sh.Promise(before, f.confirmUntil); err != nil {
				return err
			}
		}
		f.say(s, sh, changes)
	}
	return nil
}

// protect has the guard know what is to be undone now, if anything is.
func (f *runFlags) protect(name string) error {
	needed := f.confirm > 0 || slices.ContainsFunc(f.attached, func(sh *kernel.Shaper) bool { return sh.Undo() != nil })
	if f.guard == nil && needed {
		var err error
		if f.guard, err = startGuard(name); err != nil {
			return err
		}
	}
	if f.guard == nil {
		return nil
	}
	return f.guard.tell(f.attached)
}

// say tells what was attached. Nobody may listen any more: that is no reason to
// stop.
func (f *runFlags) say(s streams, sh *kernel.Shaper, changes []dataplane.Change) {
	p := &printer{w: s.out}
	p.printf("%s: attached by %s, program %d, kernel %s, policy %s (%s)\n", where(&sh.About), hookOf(&sh.About), sh.Program,
		kernelRelease(), f.policy.Name, counted(len(sh.Classes), "class", "classes"))
	if sh.Place.Mode == kernel.Generic {
		p.printf("%s: the driver has no XDP of its own: the kernel's generic form is slower than tc\n", where(&sh.About))
	}
	if sh.Pacer != "" {
		p.printf("%s: queues wait in %s\n", where(&sh.About), pacerOf(&sh.About))
	}
	if f.dry {
		p.printf("%s: dry run: packets are counted and pass as they are\n", where(&sh.About))
	}
	p.changes(&sh.About, changes)
	if f.confirm > 0 {
		p.printf("%s: shaper confirm %s within %v keeps it\n", where(&sh.About), sh.Interface, f.confirm)
	}
}

// reloaded says that a shaper has a new policy.
func (p *printer) reloaded(about *kernel.About, policy *compiled, changes []dataplane.Change) {
	p.printf("%s: reloaded, ", where(about))
	if about.Program != 0 {
		p.printf("program %d, ", about.Program)
	}
	p.printf("policy %s\n", policy.Name)
	p.changes(about, changes)
}

// changes says what became of each class, where there was a policy before.
func (p *printer) changes(about *kernel.About, changes []dataplane.Change) {
	if !slices.ContainsFunc(changes, func(c dataplane.Change) bool { return c.What != "new" }) {
		return
	}
	for _, c := range changes {
		p.printf("%s: class %s: %s\n", where(about), c.Class, c.What)
	}
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

var errUnconfirmed = errors.New("not confirmed in time: what was before is back")

// pollInterval is how often run looks at the interface.
const pollInterval = 200 * time.Millisecond

// watch waits for the end, and does what is asked for meanwhile.
func (f *runFlags) watch(ctx context.Context, s streams, name string, hup <-chan os.Signal) error {
	var over <-chan time.Time
	if f.span > 0 {
		over = time.After(f.span)
	}
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			f.pin = false
			return nil
		case <-hup:
			if err := f.again(s); err != nil {
				fmt.Fprintf(s.err, "shaper: %v: the policy stays as it was\n", err)
			}
		case <-poll.C:
			switch state, err := f.look(s); {
			case err != nil || state == detached:
				return err
			case state == gone:
				if err := f.wait(ctx, s, name); err != nil {
					return err
				}
			}
		}
	}
}

// detached says that a shaper has ended, and what that cost.
func (p *printer) detached(about *kernel.About) {
	if about.Lost > 0 {
		p.printf("%s: lost %s packets waiting when it ended\n", where(about), grouped(int64(about.Lost)))
	}
	p.printf("%s: detached\n", where(about))
}

// again reads the policy file and gives it to the kernel.
func (f *runFlags) again(s streams) error {
	policy, err := f.load()
	if err != nil {
		return err
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	if err := suits(policy, f.attached); err != nil {
		return err
	}
	p := &printer{w: s.out}
	for _, sh := range f.attached {
		changes, err := sh.Reload(policy.Policy, labelOf(policy))
		if err != nil {
			return policy.explain(err)
		}
		p.reloaded(&sh.About, policy, changes)
	}
	f.policy = policy
	return f.protect(f.attached[0].Interface)
}

// What look may find.
type found int

const (
	well     found = iota
	gone           // the interface
	detached       // by another process
)

// look sees whether the shapers are still there, and confirmed in time.
func (f *runFlags) look(s streams) (found, error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	for _, sh := range f.attached {
		switch {
		case sh.Attached():
		case sh.Gone():
			return gone, nil
		default:
			fmt.Fprintf(s.err, "shaper: %s: detached by another process\n", where(&sh.About))
			return detached, nil
		}
		loaded := sh.Loaded
		if err := sh.Refresh(); err != nil && !errors.Is(err, kernel.ErrDetached) { // that is for the next look
			return well, err
		}
		if !sh.Loaded.Equal(loaded) { // another process gave it a policy
			if err := f.protect(sh.Interface); err != nil {
				return well, err
			}
		}
	}
	if f.waits() && time.Now().After(f.confirmUntil) {
		return well, errors.Join(errUnconfirmed, f.rollBack())
	}
	return well, nil
}

// waits says whether the policy is still to be confirmed.
func (f *runFlags) waits() bool {
	return f.confirm > 0 && slices.ContainsFunc(f.attached, func(sh *kernel.Shaper) bool { return sh.Until.Equal(f.confirmUntil) })
}

// rollBack goes back to what was before, in all directions.
func (f *runFlags) rollBack() error {
	var errs []error
	for _, sh := range f.attached {
		errs = append(errs, goBack(sh))
		sh.Close()
	}
	f.attached = nil
	return errors.Join(errs...)
}

// wait clears away what belonged to an interface that is gone, and attaches
// the policy again when it comes back.
func (f *runFlags) wait(ctx context.Context, s streams, name string) error {
	fmt.Fprintf(s.err, "shaper: %s is gone: waiting for it to come back\n", name)
	if err := f.forget(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollInterval):
		}
		err := f.attach(s, name)
		if err == nil || !errors.As(err, new(*kernel.NoInterfaceError)) {
			return err
		}
	}
}

// forget detaches from an interface that is gone. The policy is the last one,
// which another process may have given.
func (f *runFlags) forget() error {
	f.lock.Lock()
	defer f.lock.Unlock()
	var errs []error
	for _, sh := range f.attached {
		if policy, err := policyOf(sh.Label); err == nil {
			f.policy = policy
		}
		errs = append(errs, sh.Detach())
	}
	f.attached, f.confirm = nil, 0 // there is nothing to go back to
	return errors.Join(errs...)
}

// end detaches, unless the policy is to stay, and says what was counted.
func (f *runFlags) end(s streams) error {
	f.lock.Lock()
	defer f.lock.Unlock()
	var errs []error
	tookOver := slices.ContainsFunc(f.attached, func(sh *kernel.Shaper) bool { return sh.Before != nil })
	if f.waits() && (f.pin || tookOver) {
		errs = append(errs, errUnconfirmed, f.rollBack())
	}
	for _, sh := range f.attached {
		stats, err := sh.Stats()
		if err == nil {
			var policy *compiled
			if policy, err = policyOf(sh.Label); err == nil {
				_, err = fmt.Fprintf(s.out, "\n%s\n", policy.table(stats, colored(s.out)))
			}
		}
		errs = append(errs, err)
		if f.pin && sh.Attached() {
			fmt.Fprintf(s.out, "%s: goes on: shaper detach %s ends it\n", where(&sh.About), sh.Interface)
			sh.Close()
			continue
		}
		errs = append(errs, sh.Detach())
		(&printer{w: s.out}).detached(&sh.About)
	}
	f.guard.end()
	return errors.Join(errs...)
}
