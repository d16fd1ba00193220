package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// policyFlags are how a command is given its policy: a file or a one-liner.
type policyFlags struct {
	file string
	one  policyfile.OneLiner

	device string   // interface that is shaped
	warned []string // warnings that were printed last
	loaded bool     // so that something may have begun
}

func (p *policyFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&p.file, "policy", "p", "", "policy `FILE` (YAML)")
	p.addOneLiner(cmd)
}

func (p *policyFlags) addOneLiner(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.one.Rate, "rate", "", "shape everything to `RATE`, such as 50mbit, through one queue with CoDel; control traffic is sent first")
	f.StringVar(&p.one.Meter, "meter", "", "one `METER` for all packets, such as \"srtcm cir=10mbit cbs=64KiB ebs=64KiB\"")
	f.StringVar(&p.one.Green, "green", "", "`ACTION` for green packets: pass, drop, dscp=af11, queue and others (default pass)")
	f.StringVar(&p.one.Yellow, "yellow", "", "`ACTION` for yellow packets (default pass)")
	f.StringVar(&p.one.Red, "red", "", "`ACTION` for red packets (default drop)")
	f.StringVar(&p.one.Queue, "queue", "", "the `QUEUE` used by the queue action, such as \"rate=20mbit limit=100ms\"")
	f.StringVar(&p.one.Length, "length", "", "length `RULE`: l3, l2, l1, or base=l2,overhead=4,mpu=64 (default l3)")
}

// span is a flag that takes a time as policies spell it. Where there is none by
// default, 0 is refused: it would not mean a short time, but none.
type span struct {
	*time.Duration
	text  string
	above bool // zero
}

func newSpan(to *time.Duration, otherwise time.Duration) *span {
	*to = otherwise
	if otherwise == 0 {
		return &span{Duration: to, above: true}
	}
	return &span{Duration: to, text: otherwise.String()}
}

func (s *span) String() string { return s.text }
func (s *span) Type() string   { return "TIME" }

func (s *span) Set(text string) error {
	d, err := policyfile.ParseDuration(text)
	if err == nil && d == 0 && s.above {
		err = errors.New("it must be above zero")
	}
	if err == nil {
		*s.Duration, s.text = d, text
	}
	return err
}

// errNoPolicy says how a policy is given.
var errNoPolicy = usagef("a policy is missing: give --policy FILE, --rate RATE or --meter \"...\"")

// given says whether the flags have a policy, or a part of one.
func (p *policyFlags) given() bool { return p.file != "" || p.one != policyfile.OneLiner{} }

// load reads and compiles the policy.
func (p *policyFlags) load() (*policyfile.Compiled, error) {
	if !p.loaded {
		defer interrupted.abruptly()()
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
	text, err := readPolicy(p.file)
	if err != nil {
		return nil, &usageError{err}
	}
	return policyfile.Source{Name: say.Printable(p.file), Path: absolute(p.file), Text: string(text)}.Compile()
}

// readPolicy reads the text of a policy.
func readPolicy(path string) ([]byte, error) { return readText("policy", path) }

// readText reads a file, but no more of it than a policy may have: it may be a
// device that does not end.
func readText(what, path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, plainPathError(what, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, policyfile.MaxSize+1))
	if len(text) > policyfile.MaxSize {
		return nil, fmt.Errorf("%s %q is larger than %d MiB, the maximum", what, path, policyfile.MaxSize>>20)
	}
	return text, plainPathError(what, err)
}

// explainIn gives the errors that a plane finds in the policy their places, and what
// avoids them. Such errors are errors of usage.
func explainIn(c *policyfile.Compiled, err error) error {
	if errors.As(err, new(*dataplane.FieldError)) {
		return &usageError{c.PlacedWith(err, adviceOn)}
	}
	return advised(err)
}

// plainPathError says which file could not be used, once.
func plainPathError(what string, err error) error {
	var e *os.PathError
	if errors.As(err, &e) {
		return fmt.Errorf("%s %q: %w", what, e.Path, e.Err)
	}
	return err
}

// both is the flag --both: the same as --direction both.
type both struct{ *directions }

func (d *directions) addBoth(cmd *cobra.Command) {
	cmd.Flags().VarPF(both{d}, "both", "", "shape both directions (same as --direction both)").NoOptDefVal = "true"
}

func (b both) String() string { return "false" }
func (b both) Type() string   { return "bool" }

func (b both) Set(text string) error {
	yes, err := strconv.ParseBool(text)
	if yes {
		return b.directions.Set("both")
	}
	return err
}
