package tc

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// verdict is the control of an action: the fate of the packet after it.
type verdict string

const (
	tcOK       verdict = "ok"       // pass: to the class of the filter
	tcDrop     verdict = "drop"     //
	tcPipe     verdict = "pipe"     // to the next action
	tcContinue verdict = "continue" // to the next filter
)

// tcVerdicts are the controls by name. reclassify starts with the first filter again: the police
// action finds no more tokens, and after some rounds the kernel drops the packet
// (max_reclassify_loop in net/sched/cls_api.c).
var tcVerdicts = []struct {
	name string
	verdict
}{
	{"continue", tcContinue},
	{"drop", tcDrop},
	{"shot", tcDrop},
	{"pass", tcOK},
	{"ok", tcOK},
	{"reclassify", tcDrop},
	{"pipe", tcPipe},
}

// tcAction is an action of a filter.
type tcAction struct {
	police   *tcPolice
	mark     *dataplane.Mark
	redirect string // interface for the redirected packets
	then     verdict
}

// tcPolice is a police action.
type tcPolice struct {
	index           uint32
	rate            *tcRate
	burst           int64
	burstText       string
	packets, pburst int64 // pkts_rate and pkts_burst
	mtu             int64
	length          tcLength
	conform, exceed verdict
	lost            []string // options that a policy cannot express
}

// checksums are the words of action csum, which tc shows in parentheses.
var checksums = []string{
	"ip4h", "iph", "ipv4h", "icmp", "igmp", "tcp", "udp", "udplite", "sctp", "and", "or", "+", "empty",
	"?empty",
}

// actionWords are the actions of a filter. The word action stands before each, except the old police.
var actionWords = []routers.Statement[*filterRead]{
	{Form: "action"},
	{Form: "[gact] <verdict:gact>", Do: (*filterRead).action},
	{Form: "gact:ok", Do: (*filterRead).action},
	{Form: "(goto:no | jump:no | trap:no) [<word>...]", Do: (*filterRead).action},
	{Form: "police:police {index <number:index> | rate <word:rate> | (burst~ | buffer | maxburst) <size:burst>" +
		" | (mtu | minburst) <size:mtu> | mpu <size:mpu> | overhead~ <u16:overhead> | linklayer~ <word:layer>" +
		" | peakrate~ <word:peakrate> | avrate <word:avrate> | pkts_rate <number:packets> | pkts_burst <number:pburst>" +
		" | conform-exceed <exceed> | <verdict:verdict>}", Do: (*filterRead).police},
	{Form: "skbedit mark <number:mark> [<verdict:then>]", Do: (*filterRead).edit},
	{Form: "pedit [ex] munge (ip (dsfield | tos) | ip6 traffic_class) set <word:dscp> retain <word:mask> [<verdict:then>]", Do: (*filterRead).edit},
	{Form: "csum [<checksum>...] [<verdict:gact>]", Do: (*filterRead).action},
	{Form: "mirred (egress | ingress) redirect [dev] <word:redirect> [<verdict>]", Do: (*filterRead).action},
	{Form: "mirred (egress | ingress) mirror [dev] <word>", Reason: "mirred mirror cannot be expressed"},
}

// action takes an action without parameters.
func (f *filterRead) action(l routers.Line, v form.Values) error {
	f.options++
	a := tcAction{then: tcOK}
	for _, x := range v {
		switch x.Name {
		case "gact":
			a.then = x.Value.(verdict)
		case "redirect":
			a = tcAction{redirect: x.Value.(string)}
		case "no":
			return fmt.Errorf("%s cannot be expressed", x.Value)
		}
	}
	f.actions = append(f.actions, a)
	return nil
}

// edit takes an action that marks packets. skbedit goes on to the next action unless it says otherwise.
func (f *filterRead) edit(l routers.Line, v form.Values) error {
	f.options++
	a := tcAction{then: tcOK}
	var mask string
	for _, x := range v {
		switch x.Name {
		case "mark":
			a.mark = &dataplane.Mark{Field: dataplane.SKBMark, Value: x.Value.(uint32)}
			a.then = tcPipe
		case "dscp":
			n, err := strconv.ParseUint(x.Value.(string), 0, 8)
			if err != nil || n&3 != 0 {
				return fmt.Errorf("%s is not a value of the DSCP", x.Value)
			}
			a.mark = &dataplane.Mark{Field: dataplane.DSCP, Value: uint32(n) >> 2}
		case "mask":
			mask = x.Value.(string)
		case "then":
			a.then = x.Value.(verdict)
		}
	}
	if n, err := strconv.ParseUint(mask, 0, 8); mask != "" && (err != nil || n != 0xfc) {
		return fmt.Errorf("retain %s cannot be expressed: only 0xfc, the DSCP, can", mask)
	}
	f.actions = append(f.actions, a)
	return nil
}

// police takes a police action.
func (f *filterRead) police(l routers.Line, v form.Values) (err error) {
	f.options++
	p := &tcPolice{conform: tcOK, exceed: tcDrop}
	for _, x := range v {
		switch x.Name {
		case "index":
			p.index = x.Value.(uint32)
		case "rate":
			if p.rate, err = positiveRate(x.Value.(string), f.link); err != nil {
				return err
			}
		case "burst":
			p.burst, p.burstText = x.Value.(int64), x.Words[0]
		case "mtu":
			p.mtu = x.Value.(int64)
		case "mpu":
			p.length.mpu = int(x.Value.(int64))
		case "overhead":
			p.length.overhead = int(x.Value.(uint32))
		case "layer":
			if x.Value != "ethernet" {
				p.lost = append(p.lost, fmt.Sprintf("linklayer %s: it rounds packets to cells of 53 bytes", x.Value))
			}
		case "peakrate":
			p.lost = append(p.lost, fmt.Sprintf(
				"peakrate %s: a packet must conform to two buckets, and takes from none if it does not; no meter does that",
				x.Value))
		case "avrate":
			p.lost = append(p.lost, fmt.Sprintf("avrate %s: it limits a rate estimator", x.Value))
		case "packets":
			p.packets = int64(x.Value.(uint32))
		case "pburst":
			p.pburst = int64(x.Value.(uint32))
		case "exceed":
			both := x.Value.([2]verdict)
			p.exceed, p.conform = both[0], both[1]
		case "verdict":
			p.exceed = x.Value.(verdict)
		}
	}
	if p.rate != nil && p.packets > 0 {
		return errors.New("rate and pkts_rate in one police action: tc rejects that")
	}
	f.actions = append(f.actions, tcAction{police: p, then: tcOK})
	return nil
}

// tcOutcome is the result of the actions of a filter for a color.
type tcOutcome struct {
	verdict verdict // tcOK, tcDrop or tcContinue
	marks   []dataplane.Mark
}

// outcome returns the outcome of actions without police actions.
func outcome(actions []tcAction, marks []dataplane.Mark) (o tcOutcome, err error) {
	o.marks = slices.Clone(marks)
	for _, a := range actions {
		switch {
		case a.police != nil:
			return o,
				fmt.Errorf("a third police action, or one that conforming and exceeding packets share, cannot be expressed")
		case a.redirect != "":
			return o, fmt.Errorf("redirection to %s cannot be expressed here", a.redirect)
		case a.mark != nil:
			o.marks = slices.DeleteFunc(o.marks,
				func(m dataplane.Mark) bool { return m.Field == a.mark.Field })
			o.marks = append(o.marks, *a.mark)
		}
		if a.then != tcPipe {
			o.verdict = a.then
			break
		}
	}
	if o.verdict == "" {
		o.verdict = tcOK
	}
	if o.verdict == tcDrop {
		o.marks = nil
	}
	return o, nil
}
