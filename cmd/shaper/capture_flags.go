package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay/filter"
	"github.com/spf13/cobra"
)

// captureFlags are the flags of commands that read a capture.
type captureFlags struct {
	filter          string
	way             wayFlag
	inside          prefixesFlag
	mss, udpSegment int // bytes
	fcs             fcsFlag
	maxGap, maxStep time.Duration

	unfiltered int64 // packets that the filter excluded because of their link type
}

func (f *captureFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.filter, "filter", "",
		"read only the packets that match `FILTER`, in tcpdump's language, such as \"host 192.0.2.1 and udp\"")
	flags.Var(&f.way, "direction",
		"read only packets of this `DIRECTION`: in or out; ingress or egress (default) read all packets as received or sent")
	flags.Var(&f.inside, "inside",
		"tell directions by addresses: packets from `NETWORK`, such as 10.0.0.0/8, go out (repeatable)")
	flags.IntVar(&f.mss, "mss", 0,
		"cut super-packets of TSO and GRO by an MSS of `BYTES` if the connection's SYN is not in the capture")
	flags.IntVar(&f.udpSegment, "udp-segment", 0,
		"cut super-packets of UDP GSO and GRO into datagrams with `BYTES` of payload")
	flags.Var(&f.fcs, "fcs",
		"cut `BYTES` behind each Ethernet frame: 4 for an FCS, 0 for none (default: as the capture declares)")
	flags.Var(cli.NewTimeFlag(&f.maxGap, replay.DefaultMaxGap), "max-gap",
		"treat a timestamp more than `TIME` ahead of earlier ones as a step of the clock, not a pause")
	flags.Var(cli.NewTimeFlag(&f.maxStep, replay.DefaultMaxStep), "max-step",
		"treat a timestamp more than `TIME` behind earlier ones as a step of the clock, not reordering")
}

// config returns the part of a replay's configuration that the flags define. shared is as in
// replay.Config; it is ignored if a direction was chosen.
func (f *captureFlags) config(shared []bool) (replay.Config, error) {
	cfg := replay.Config{
		MaxGap: f.maxGap, MaxStep: f.maxStep, MSS: f.mss, UDPSegment: f.udpSegment, FCS: int(f.fcs),
		Select: replay.Selection{Way: f.way.only, Inside: f.inside},
	}
	switch {
	case f.maxGap <= 0:
		return cfg, cli.Usagef("--max-gap must be above zero")
	case f.maxStep <= 0:
		return cfg, cli.Usagef("--max-step must be above zero")
	case f.mss != 0 && (f.mss < replay.MinMSS || f.mss > 1<<16-1):
		return cfg, cli.Usagef("--mss %d: want %d to 65535 bytes, such as 1460", f.mss, replay.MinMSS)
	}
	if f.udpSegment < 0 || f.udpSegment > replay.MaxUDPSegment {
		return cfg, cli.Usagef("--udp-segment %d: want 1 to %d bytes, such as 1200", f.udpSegment,
			replay.MaxUDPSegment)
	}
	if !f.way.given {
		cfg.Shared = shared
	}
	if f.filter == "" {
		return cfg, nil
	}
	program, err := filter.New(f.filter)
	if err != nil {
		return cfg, cli.Usagef("--filter:1:%w", err)
	}
	cfg.Select.Filter = func(p *dataplane.Packet) bool {
		if !p.Link.Known() {
			f.unfiltered++
		}
		return program.Match(p)
	}
	return cfg, nil
}

// replay replays the chosen packets, and completes the warnings. cut is as in input.replay.
func (f *captureFlags) replay(
	ctx context.Context, s cli.Streams, i *input, e replay.Engine, cfg replay.Config,
) (summary replay.Summary, cut, err error) {
	summary, cut, err = i.replay(ctx, s, e, cfg)
	if err != nil {
		return summary, nil, err
	}
	if err := f.finish(&summary); err != nil {
		return summary, nil, fmt.Errorf("%s: %w", i.name, err)
	}
	return summary, cut, nil
}

// finish completes the warnings of a replay. It returns an error if a direction was chosen, but
// the capture has none.
func (f *captureFlags) finish(s *replay.Summary) error {
	if f.way.only != replay.AnyWay && !s.Directed && s.Undirected > 0 {
		return errors.New("the capture does not tell the direction of packets: give the networks behind the interface, such as --inside 10.0.0.0/8")
	}
	if s.Packets > 0 && s.Unread == s.Packets {
		return fmt.Errorf("link type %v cannot be read: all %s count as non-IP, and no class matches them",
			s.UnreadLink, say.Count(s.Unread, "packet"))
	}
	warn := func(format string, args ...any) { s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...)) }
	if s.Packets == 0 && s.Read > 0 {
		warn("all %s are excluded by --filter or --direction", say.Count(s.Read, "packet"))
	}
	if s.Undirected > 0 {
		warn("%s of unknown direction: excluded by --direction", say.Count(s.Undirected, "packet"))
	}
	if f.unfiltered > 0 {
		warn("%s of a link type that --filter cannot read: excluded", say.Count(f.unfiltered, "packet"))
	}
	const share = "share the same tokens or queues: choose one with "
	switch b := s.Both; {
	case b.In > 0:
		warn("both directions, %s received and %s sent, "+share+"--direction in or out",
			say.Count(b.In, "packet"), say.Grouped(b.Out))
	case b.ToServers > 0:
		scope := ""
		if s.Packets > replay.BothSample {
			scope = fmt.Sprintf(" of the first %s", say.Grouped(replay.BothSample))
		}
		warn("both directions of TCP connections, %s to servers and %s back%s, "+share+"--filter, or with --direction and --inside",
			say.Count(b.ToServers, "packet"), say.Grouped(b.ToClients), scope)
	}
	return nil
}

// wayFlag is a direction of packets, or the direction as which all of them are read.
type wayFlag struct {
	direction dataplane.Direction
	only      replay.Way
	given     bool
	text      string
}

var ways = map[string]wayFlag{
	"in":      {direction: dataplane.Ingress, only: replay.In, given: true},
	"out":     {direction: dataplane.Egress, only: replay.Out, given: true},
	"ingress": {direction: dataplane.Ingress, only: replay.AnyWay, given: true},
	"egress":  {direction: dataplane.Egress, only: replay.AnyWay, given: true},
}

func (w *wayFlag) String() string { return w.text }
func (w *wayFlag) Type() string   { return "DIRECTION" }

func (w *wayFlag) Set(text string) error {
	way, ok := ways[text]
	if !ok {
		return errors.New("want in, out, ingress or egress")
	}
	*w = way
	w.text = text
	return nil
}

// fcsFlag is a replay.Config.FCS.
type fcsFlag int

func (f *fcsFlag) Type() string { return "BYTES" }

func (f *fcsFlag) String() string {
	switch *f {
	case 0:
		return ""
	case replay.NoFCS:
		return "0"
	}
	return strconv.Itoa(int(*f))
}

func (f *fcsFlag) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > replay.MaxFCS {
		return fmt.Errorf("want 0 to %d bytes, such as 4", replay.MaxFCS)
	}
	*f = fcsFlag(cmp.Or(n, replay.NoFCS))
	return nil
}

// prefixesFlag is a list of networks.
type prefixesFlag []netip.Prefix

func (l *prefixesFlag) String() string {
	words := make([]string, len(*l))
	for i, n := range *l {
		words[i] = n.String()
	}
	return strings.Join(words, ",")
}

func (l *prefixesFlag) Type() string { return "NETWORK" }

func (l *prefixesFlag) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		n, err := netip.ParsePrefix(part)
		if a, e := netip.ParseAddr(part); e == nil && a.Zone() == "" {
			n, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || n != n.Masked() {
			return errors.New("want networks such as 10.0.0.0/8 or 2001:db8::/32, separated by commas")
		}
		*l = append(*l, n)
	}
	return nil
}

// sharedClasses has true for each class whose packets all draw from the same tokens or the same
// queue.
func sharedClasses(plan *compiled.Plan) []bool {
	shared := make([]bool, len(plan.Classes))
	for i := range plan.Classes {
		c := &plan.Classes[i]
		for stage := c.Stage; stage >= 0; stage = plan.Stages[stage].Then {
			shared[i] = shared[i] || !plan.Stages[stage].Keyed() && !plan.Stages[stage].Customers
		}
		for _, a := range c.Actions {
			shared[i] = shared[i] || a.Queue >= 0
		}
	}
	return shared
}
