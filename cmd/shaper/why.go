package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// whyFlags are the flags of shaper why.
type whyFlags struct {
	policyFlags
	json bool
}

func newWhy(s streams) *cobra.Command {
	var f whyFlags
	cmd := &cobra.Command{
		Use:     "why IN N",
		GroupID: "look",
		Short:   "Tell every step of one packet's verdict",
		Long: `Replay a capture up to packet N, counted from 1 as in replay --decisions, and tell
every step of its verdict: when it came, what it is, how long it counts, the class
and the rule that took it, what the classes before it missed, each meter's tokens
before and after with the clause of the RFC, the action, the queue, and what became
of it. IN is pcap or pcapng, gzipped or not, or - for the standard input.`,
		Example: `  shaper why testdata/pcaps/voice-bulk.pcapng 38 --policy docs/customer.yaml
  shaper why testdata/pcaps/bursts.pcap 400 \
    --meter "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB" --yellow dscp=af12`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("want a capture and the number of a packet, got %d arguments: see %s --help", len(args), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args[0], args[1]) },
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.json, "json", false, "print as JSON")
	return cmd
}

func (f *whyFlags) run(cmd *cobra.Command, s streams, in, number string) error {
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 {
		return usagef("packet %q: want its number, from 1", number)
	}
	policy, err := f.load()
	if err != nil {
		return err
	}
	input, err := openInput(in, s.in)
	if err != nil {
		return err
	}
	defer input.Close()

	w := newWitness(policy, n)
	reader := &say.MeteredReader{Reader: input}
	endProgress := say.ShowProgress(s.err, reader.Reading(input.size))
	summary, err := replay.Run(cmd.Context(), reader, w, replay.Config{Each: w.each, Settled: w.left})
	endProgress()
	switch {
	case errors.Is(err, errSeen):
		err = nil
	case err != nil && !(summary.Began && partial(err)):
		return fmt.Errorf("%s: %w", input.name, err)
	case summary.Packets < n && err != nil:
		return fmt.Errorf("%s: %w: the %d packets before that do not have packet %d", input.name, err, summary.Packets, n)
	case summary.Packets < n:
		return fmt.Errorf("%s: there is no packet %d: the capture has %s", input.name, n, say.Count(summary.Packets, "packet"))
	}
	told := w.tell()
	if f.json {
		if e := say.WriteJSON(s.out, told); e != nil {
			return e
		}
	} else if e := told.write(s.out, say.Colored(s.out)); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("%s: %w: packet %d waited until then, and was settled as if nothing came after", input.name, err, n)
	}
	return nil
}

// errSeen ends a replay whose packet is settled.
var errSeen = errors.New("seen")

// witness is a replay.Engine that remembers what one packet found when it came,
// and what became of it.
type witness struct {
	*dataplane.Pipeline
	policy  *compiled
	number  int64
	store   *alone
	first   int64               // ns, stamp of packet 1
	ahead   int64               // the packet whose stamp is the clock
	waiting []backlog           // by queue of the plan
	settled []dataplane.Verdict // that Settle has yet to return

	packet  dataplane.Packet // as it came, parsed
	steps   []dataplane.Step
	queues  []backlog // as the packet found them
	verdict dataplane.Verdict
	seen    bool // verdict is there
	ending  bool // nothing comes any more
}

func newWitness(policy *compiled, number int64) *witness {
	pipeline := dataplane.NewPipeline(policy.plan)
	return &witness{
		Pipeline: pipeline, policy: policy, number: number, store: newAlone(pipeline),
		waiting: make([]backlog, len(policy.plan.Queues)),
	}
}

// backlog is what waits in a queue.
type backlog struct {
	packets, bytes int64
	delay          time.Duration // of a packet that comes now, unless it is a link's
	leaving        []departing   // in order, unless it is a link's
}

type departing struct{ at, bytes int64 }

// leave forgets what has left by now.
func (b *backlog) leave(now int64) {
	for len(b.leaving) > 0 && b.leaving[0].at <= now {
		b.packets--
		b.bytes -= b.leaving[0].bytes
		b.leaving = b.leaving[1:]
	}
}

// Batch is 1.
func (*witness) Batch() int { return 1 }

// Process takes packets through the pipeline, and looks at the one of interest.
func (w *witness) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		p, v := &packets[i], &verdicts[i]
		if p.ID == 1 {
			w.first = p.Time
		}
		if p.ID == 1 || p.Time > w.Now() {
			w.ahead = p.ID
		}
		w.store.until(p.Time)
		if p.ID == w.number {
			w.look(p, v)
		} else {
			w.Pipeline.Process(p, v)
		}
		w.queued(v)
	}
	return nil
}

// look settles what a link decides before the packet comes, so that the queues
// are as it finds them.
func (w *witness) look(p *dataplane.Packet, v *dataplane.Verdict) {
	now := max(w.Now(), p.Time)
	for d := (dataplane.Verdict{}); w.settle(now, &d); {
		w.settled = append(w.settled, d)
	}
	for i, q := range w.Queues(now) {
		b := &w.waiting[i]
		b.leave(now)
		w.queues = append(w.queues, backlog{packets: b.packets, bytes: b.bytes, delay: q.Delay})
	}
	w.packet = *p
	w.packet.Data = bytes.Clone(p.Data)
	dataplane.Parse(&w.packet)
	w.steps = w.Explain(p, v)
}

// backlogOf is the backlog of the queue of a packet's action, which names one.
func (w *witness) backlogOf(v *dataplane.Verdict) *backlog {
	return &w.waiting[w.policy.plan.Classes[v.Class].Actions[v.Color].Queue]
}

// queued counts a packet that waits.
func (w *witness) queued(v *dataplane.Verdict) {
	linked := v.Done&dataplane.Waiting != 0
	if v.Done&dataplane.Queued == 0 || !linked && v.Departure <= v.Now {
		return
	}
	b := w.backlogOf(v)
	b.packets++
	b.bytes += int64(v.Length)
	if !linked {
		b.leave(v.Now)
		b.leaving = append(b.leaving, departing{v.Departure, int64(v.Length)})
	}
}

// Settle returns what look has settled first.
func (w *witness) Settle(now int64, v *dataplane.Verdict) bool {
	w.ending = now == math.MaxInt64
	if len(w.settled) > 0 {
		*v, w.settled = w.settled[0], w.settled[1:]
		return true
	}
	return w.settle(now, v)
}

func (w *witness) settle(now int64, v *dataplane.Verdict) bool {
	if !w.Pipeline.Settle(now, v) {
		return false
	}
	b := w.backlogOf(v)
	b.packets--
	b.bytes -= int64(v.Length)
	return true
}

// each ends the replay with the packet, unless it waits.
func (w *witness) each(p *dataplane.Packet, v *dataplane.Verdict) error {
	switch {
	case w.seen:
		return errSeen
	case p.ID == w.number && v.Done&dataplane.Waiting == 0:
		return w.left(v)
	}
	return nil
}

// left ends the replay where it was the packet that left, or was dropped. At the
// end of the capture it leaves the error to what ended that.
func (w *witness) left(v *dataplane.Verdict) error {
	if v.ID != w.number {
		return nil
	}
	w.verdict, w.seen = *v, true
	if w.ending {
		return nil
	}
	return errSeen
}
