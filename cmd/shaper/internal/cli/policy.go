package cli

import (
	"errors"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/spf13/cobra"
)

// PolicyFlags are the flags for a policy: a file or a one-liner.
type PolicyFlags struct {
	File    string // path; "" for a one-liner
	One     policyfile.OneLiner
	NoMarks string // lint.Options.NoMarks

	device string   // shaped interface
	warned []string // warnings printed last
	loaded bool     // Load was called; the command may have started since
}

// Add adds --policy and the flags of a one-liner to a command.
func (p *PolicyFlags) Add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&p.File, "policy", "p", "", "use the policy in `FILE` (YAML)")
	p.AddOneLiner(cmd)
}

// AddOneLiner adds the flags of a one-liner to a command.
func (p *PolicyFlags) AddOneLiner(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.One.Rate, "rate", "",
		"shape everything to `RATE`, such as 50mbit, or egress=20mbit,ingress=100mbit, through one queue with CoDel; control traffic is sent first")
	f.StringVar(&p.One.Meter, "meter", "",
		"meter all packets with `METER`, such as \"srtcm cir=10mbit cbs=64KiB ebs=64KiB\"")
	f.StringVar(&p.One.Green, "green", "",
		"apply `ACTION` to green packets: pass, drop, dscp=af11, queue and others (default pass)")
	f.StringVar(&p.One.Yellow, "yellow", "", "apply `ACTION` to yellow packets (default pass)")
	f.StringVar(&p.One.Red, "red", "", "apply `ACTION` to red packets (default drop)")
	f.StringVar(&p.One.Queue, "queue", "",
		"define the `QUEUE` used by the queue action, such as \"rate=20mbit limit=100ms\"")
	f.StringVar(&p.One.Length, "length", "",
		"count packet lengths by `RULE`: l3, l2, l1, or base=l2,overhead=4,mpu=64 (default l3)")
}

// errNoPolicy is the error of a command without a policy.
var errNoPolicy = Usagef("a policy is missing: give --policy FILE, --rate RATE or --meter \"...\"")

// Given reports whether any of the flags was given.
func (p *PolicyFlags) Given() bool { return p.File != "" || p.One != policyfile.OneLiner{} }

// Load reads and compiles the policy.
func (p *PolicyFlags) Load() (*policyfile.Compiled, error) {
	if !p.loaded {
		defer Interrupted.AllowExit()()
		p.loaded = true
	}
	o := p.One
	rest := o
	rest.Rate, rest.Length = "", ""
	switch none := (policyfile.OneLiner{}); {
	case p.File != "" && o != none:
		return nil, Usagef(
			"--policy cannot be combined with --rate, --meter, --green, --yellow, --red, --queue or --length")
	case o.Rate != "" && rest != none:
		return nil,
			Usagef("--rate is a whole policy: combine it only with --length, not with --meter, --green, --yellow, --red or --queue")
	case p.File != "":
	case o.Rate != "":
		return policyfile.Source{Name: say.Printable("--rate " + o.Rate), One: &p.One}.Compile()
	case o.Meter != "":
		return policyfile.Source{Name: say.Printable("--meter " + o.Meter), One: &p.One}.Compile()
	case o.Green != "" && o.Yellow+o.Red != "":
		return nil, Usagef("--yellow and --red need --meter \"...\": without a meter every packet is green")
	case o.Green != "":
		return policyfile.Source{Name: say.Printable("--green " + o.Green), One: &p.One}.Compile()
	case o.Queue != "":
		return nil, Usagef("no action uses --queue: add --green queue, or --meter \"...\" --red queue")
	default:
		return nil, errNoPolicy
	}
	text, err := ReadText("policy", p.File)
	if err != nil {
		return nil, &UsageError{Err: err}
	}
	return policyfile.Source{
		Name: say.Printable(p.File), Path: output.Absolute(p.File), Text: string(text),
	}.Compile()
}

// ExplainIn adds places and advice to errors found by a plane in the policy. Such errors are errors
// of usage.
func ExplainIn(c *policyfile.Compiled, err error) error {
	if errors.As(err, new(*dataplane.FieldError)) {
		return &UsageError{Err: c.PlacedWith(err, adviceOn)}
	}
	return Advised(err)
}

// CheckPolicy returns an error if any of the shapers cannot run a policy.
func CheckPolicy[S interface{ Check(*compiled.Plan) error }](c *policyfile.Compiled, list []S) error {
	for _, sh := range list {
		if err := sh.Check(c.Plan); err != nil {
			return ExplainIn(c, err)
		}
	}
	return nil
}
