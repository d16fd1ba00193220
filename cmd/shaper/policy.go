package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// policyFlags are how a command is given its policy: a file or a one-liner.
type policyFlags struct {
	file string
	one  policyfile.OneLiner
}

func (p *policyFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&p.file, "policy", "p", "", "policy `FILE` (YAML)")
	p.addOneLiner(cmd)
}

func (p *policyFlags) addOneLiner(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.one.Meter, "meter", "", "one `METER` for all packets, such as \"srtcm cir=10mbit cbs=64KiB ebs=64KiB\"")
	f.StringVar(&p.one.Green, "green", "", "`ACTION` for green packets: pass, drop, dscp=af11, queue and others (default pass)")
	f.StringVar(&p.one.Yellow, "yellow", "", "`ACTION` for yellow packets (default pass)")
	f.StringVar(&p.one.Red, "red", "", "`ACTION` for red packets (default drop)")
	f.StringVar(&p.one.Queue, "queue", "", "the `QUEUE` that actions name, such as \"rate=20mbit limit=100ms\"")
	f.StringVar(&p.one.Length, "length", "", "`RULE` of what counts: l3, l2, l1, or base=l2,overhead=4,mpu=64 (default l3)")
}

// span is a flag that takes a time as policies spell it.
type span struct {
	*time.Duration
	text string
}

func newSpan(to *time.Duration, otherwise time.Duration) *span {
	*to = otherwise
	if otherwise == 0 {
		return &span{to, ""} // none
	}
	return &span{to, otherwise.String()}
}

func (s *span) String() string { return s.text }
func (s *span) Type() string   { return "TIME" }

func (s *span) Set(text string) (err error) {
	*s.Duration, err = policyfile.ParseDuration(text)
	s.text = text
	return err
}

// label is a policy as it was given. A shaper in the kernel keeps it, so that
// whoever finds the shaper can read its policy.
type label struct {
	Name string               `json:"name"`           // for people
	Path string               `json:"path,omitempty"` // absolute, of a file
	Text string               `json:"text,omitempty"`
	One  *policyfile.OneLiner `json:"one,omitempty"`
}

// compiled is a policy with its pipeline.
type compiled struct {
	*policyfile.File
	label
	pipeline *dataplane.Pipeline
}

// load reads and compiles the policy.
func (p *policyFlags) load() (*compiled, error) {
	given := p.one != policyfile.OneLiner{}
	switch {
	case p.file != "" && given:
		return nil, usagef("give --policy or --meter with its actions, not both")
	case p.file == "" && p.one.Meter == "":
		return nil, usagef("a policy is missing: give --policy FILE or --meter \"...\"")
	case p.file == "":
		return label{Name: "--meter " + p.one.Meter, One: &p.one}.compile()
	}
	text, err := os.ReadFile(p.file)
	if err != nil {
		return nil, usagef("%w", plainPathError("policy", err))
	}
	return label{Name: p.file, Path: absolute(p.file), Text: string(text)}.compile()
}

func (l label) compile() (*compiled, error) {
	out := &compiled{label: l}
	var err error
	if l.One != nil {
		out.File, err = l.One.Load()
	} else {
		out.File, err = policyfile.Load(l.Name, []byte(l.Text))
	}
	if err == nil {
		out.pipeline, err = out.Compile()
	}
	if err != nil {
		return nil, &usageError{err}
	}
	return out, nil
}

// explain gives what a plane finds wrong with the policy its place. Such a
// fault is one of usage.
func (c *compiled) explain(err error) error {
	if errors.As(err, new(*dataplane.FieldError)) {
		return &usageError{c.Placed(err)}
	}
	return err
}

// plainPathError says which file could not be used, once.
func plainPathError(what string, err error) error {
	var e *os.PathError
	if errors.As(err, &e) {
		return fmt.Errorf("%s %q: %w", what, e.Path, e.Err)
	}
	return err
}
