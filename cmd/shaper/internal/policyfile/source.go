package policyfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// Source is the text of a policy, or its flags. A running shaper keeps it as its label, so
// other processes can read the policy.
type Source struct {
	Name string    `json:"name"`           // name for people
	Path string    `json:"path,omitempty"` // absolute path of the file; "" for flags
	Text string    `json:"text,omitempty"` // text of the file
	One  *OneLiner `json:"one,omitempty"`  // flags; nil for a file

	Customers *CustomerFile `json:"customers,omitempty"` // set by Compile; nil without customers
	Changes   string        `json:"changes,omitempty"`   // path of the file of changes; "" for none
	Ruled     bool          `json:"ruled,omitempty"`     // set by Compile: plans have quotas or schedules

	namesOnly bool // customers have no addresses and VLANs
}

// Compiled is a policy with its source and its plan.
type Compiled struct {
	*File
	Source
	Plan *compiled.Plan

	base   *compiled.Plan // Plan without changes; nil if there are none
	roster *Roster        // its customers; nil: they do not change
}

// For returns the policy for packets of one direction.
func (c *Compiled) For(d dataplane.Direction) *Compiled {
	next, plan := *c, *c.Plan.For(d)
	plan.Up = nil
	next.File, next.Plan = c.File.Of(&plan), &plan
	return &next
}

// InvalidError is the error for a policy that does not compile.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }
func (e *InvalidError) Unwrap() error { return e.Err }

// Compile reads and compiles the policy. It reads the file of customers, unless Customers is
// set: then the file must be the same as before. The error is an *InvalidError.
func (s Source) Compile() (*Compiled, error) {
	file, err := s.load()
	if err != nil {
		return nil, &InvalidError{err}
	}
	s.Ruled = file.HasRules()
	plan, err := file.Compile()
	if err != nil {
		return nil, &InvalidError{err}
	}
	c := &Compiled{File: file, Source: s, Plan: plan}
	c.roster = newRoster(c)
	return c, nil
}

func (s *Source) load() (*File, error) {
	if s.One != nil {
		return s.One.Load()
	}
	return load(s.Name, []byte(s.Text), s.readCustomers, s.namesOnly)
}

// readCustomers reads the file of customers. path is relative to the policy file.
func (s *Source) readCustomers(path string) (string, error) {
	if s.Customers != nil {
		return s.Customers.Read()
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(s.Path), path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	file, text, err := openCustomers(path)
	if err != nil {
		return "", err
	}
	s.Customers = file
	return text, nil
}

// Label returns the label of a shaper with this source.
func (s Source) Label() json.RawMessage {
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings only
	}
	return raw
}

// SourceOf returns the source in a label. It does not compile the policy.
func SourceOf(label json.RawMessage) (s Source, err error) {
	if err := json.Unmarshal(label, &s); err != nil {
		return s, fmt.Errorf("the shaper was attached by another version: %w", err)
	}
	if s.Text == "" && s.One == nil {
		return s, errors.New("the shaper was attached by another program, which keeps no text of its policy")
	}
	return s, nil
}
