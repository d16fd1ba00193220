package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// policyFlags are the flags for a policy: a file or a one-liner.
type policyFlags struct {
	file string
	one  policyfile.OneLiner

	device  string   // shaped interface
	noMarks string   // lint.Options.NoMarks
	warned  []string // warnings printed last
	loaded  bool     // load was called; the command may have started since
}

func (p *policyFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&p.file, "policy", "p", "", "use the policy in `FILE` (YAML)")
	p.addOneLiner(cmd)
}

func (p *policyFlags) addOneLiner(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.one.Rate, "rate", "", "shape everything to `RATE`, such as 50mbit, through one queue with CoDel; control traffic is sent first")
	f.StringVar(&p.one.Meter, "meter", "", "meter all packets with `METER`, such as \"srtcm cir=10mbit cbs=64KiB ebs=64KiB\"")
	f.StringVar(&p.one.Green, "green", "", "apply `ACTION` to green packets: pass, drop, dscp=af11, queue and others (default pass)")
	f.StringVar(&p.one.Yellow, "yellow", "", "apply `ACTION` to yellow packets (default pass)")
	f.StringVar(&p.one.Red, "red", "", "apply `ACTION` to red packets (default drop)")
	f.StringVar(&p.one.Queue, "queue", "", "define the `QUEUE` used by the queue action, such as \"rate=20mbit limit=100ms\"")
	f.StringVar(&p.one.Length, "length", "", "count packet lengths by `RULE`: l3, l2, l1, or base=l2,overhead=4,mpu=64 (default l3)")
}

// timeFlag is the value of a flag: a time in the syntax of policies. If the default is none,
// 0 is rejected, because it would mean none instead of a short time.
type timeFlag struct {
	*time.Duration
	text     string
	positive bool // 0 is rejected
}

func newTimeFlag(to *time.Duration, byDefault time.Duration) *timeFlag {
	*to = byDefault
	if byDefault == 0 {
		return &timeFlag{Duration: to, positive: true}
	}
	return &timeFlag{Duration: to, text: byDefault.String()}
}

func (s *timeFlag) String() string { return s.text }
func (s *timeFlag) Type() string   { return "TIME" }

func (s *timeFlag) Set(text string) error {
	d, err := policyfile.ParseDuration(text)
	if err == nil && d == 0 && s.positive {
		err = errors.New("it must be above zero")
	}
	if err == nil {
		*s.Duration, s.text = d, text
	}
	return err
}

// errNoPolicy is the error of a command without a policy.
var errNoPolicy = usagef("a policy is missing: give --policy FILE, --rate RATE or --meter \"...\"")

// given reports whether any of the flags was given.
func (p *policyFlags) given() bool { return p.file != "" || p.one != policyfile.OneLiner{} }

// load reads and compiles the policy.
func (p *policyFlags) load() (*policyfile.Compiled, error) {
	if !p.loaded {
		defer interrupted.allowExit()()
		p.loaded = true
	}
	o := p.one
	rest := o
	rest.Rate, rest.Length = "", ""
	switch none := (policyfile.OneLiner{}); {
	case p.file != "" && o != none:
		return nil, usagef("--policy cannot be combined with --rate, --meter, --green, --yellow, --red, --queue or --length")
	case o.Rate != "" && rest != none:
		return nil, usagef("--rate is a whole policy: combine it only with --length, not with --meter, --green, --yellow, --red or --queue")
	case p.file != "":
	case o.Rate != "":
		return policyfile.Source{Name: say.Printable("--rate " + o.Rate), One: &p.one}.Compile()
	case o.Meter != "":
		return policyfile.Source{Name: say.Printable("--meter " + o.Meter), One: &p.one}.Compile()
	case o.Green != "" && o.Yellow+o.Red != "":
		return nil, usagef("--yellow and --red need --meter \"...\": without a meter every packet is green")
	case o.Green != "":
		return policyfile.Source{Name: say.Printable("--green " + o.Green), One: &p.one}.Compile()
	case o.Queue != "":
		return nil, usagef("no action uses --queue: add --green queue, or --meter \"...\" --red queue")
	default:
		return nil, errNoPolicy
	}
	text, err := readText("policy", p.file)
	if err != nil {
		return nil, &usageError{err}
	}
	return policyfile.Source{Name: say.Printable(p.file), Path: output.Absolute(p.file), Text: string(text)}.Compile()
}

// readText reads a file of at most the maximum size of a policy. The file may be a device that
// does not end.
func readText(what, path string) ([]byte, error) { return readLimited(what, path, policyfile.MaxSize) }

func readLimited(what, path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, plainPathError(what, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if int64(len(text)) > most {
		return nil, fmt.Errorf("%s %q is larger than %d MiB, the maximum", what, path, most>>20)
	}
	return text, plainPathError(what, err)
}

// explainIn adds places and advice to errors that a plane finds in the policy. Such errors are
// errors of usage.
func explainIn(c *policyfile.Compiled, err error) error {
	if errors.As(err, new(*dataplane.FieldError)) {
		return &usageError{c.PlacedWith(err, adviceOn)}
	}
	return advised(err)
}

// plainPathError writes the path of an error once, after what.
func plainPathError(what string, err error) error {
	var e *os.PathError
	if errors.As(err, &e) {
		return fmt.Errorf("%s %q: %w", what, e.Path, e.Err)
	}
	return err
}
