package control

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/strictjson"
)

// Change is the JSON form of a change.
type Change struct {
	Kind changes.TargetKind `json:"kind"`
	Name string             `json:"name"`
	Plan string             `json:"plan,omitempty"`
	// in the syntax of policies, such as rate: 50mbit
	Parameters map[string]string `json:"parameters,omitempty"`
	Off        *bool             `json:"off,omitempty"`
	Reset      bool              `json:"reset,omitempty"`
	Until      time.Time         `json:"until,omitzero"`
	For        string            `json:"for,omitempty"` // duration instead of Until; not in answers

	// Only in answers.
	By       string    `json:"by,omitempty"`        // "quota", or the tool: "shaper set" or "the API"
	User     string    `json:"user,omitempty"`      // who made the change
	Since    time.Time `json:"since,omitzero"`      // time of the change
	InPolicy *Terms    `json:"in_policy,omitempty"` // terms of the policy without the change
	State    string    `json:"state,omitempty"`     // why the shaper may not be as the change says; "": it is
}

// Terms are the terms of a customer, link or queue in the policy.
type Terms struct {
	Plan       string            `json:"plan,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
}

// ListChanges returns the JSON form of changes made.
func ListChanges(list []changes.Change) []Change {
	out := []Change{}
	for i := range list {
		out = append(out, ChangeOf(&list[i]))
	}
	return out
}

// ListStates returns the JSON form of all changes of some targets, with their states.
func ListStates(list []changes.Change, now time.Time) []Change {
	all := live.Changes{Book: changes.Book{}}
	for _, c := range list {
		all.Apply(c)
	}
	out := []Change{}
	for c, state := range all.States(now) {
		row := ChangeOf(&c)
		row.State = state
		out = append(out, row)
	}
	return out
}

// byQuota is By of the change of a quota.
const byQuota = "quota"

// ChangeOf returns the JSON form of a change.
func ChangeOf(c *changes.Change) Change {
	row := Change{
		Kind: c.Kind, Name: c.Name, Plan: c.Plan, Parameters: c.Parameters, Off: c.Off, Reset: c.Reset,
		Until: c.Until, By: c.Author.With, User: c.Author.User, Since: c.Since,
	}
	if c.By == changes.ByQuota {
		row.By = byQuota
	}
	return row
}

// Made is the reverse of ChangeOf.
func (c *Change) Made() changes.Change {
	out := changes.Change{
		Target: changes.Target{Kind: c.Kind, Name: c.Name}, Reset: c.Reset, Until: c.Until, Since: c.Since,
		Terms:  changes.Terms{Plan: c.Plan, Parameters: c.Parameters, Off: c.Off},
		Author: changes.Author{User: c.User, With: c.By},
	}
	if c.By == byQuota {
		out.By, out.Author.With = changes.ByQuota, ""
	}
	return out
}

// request is a Change without the fields that are only in answers.
type request struct {
	Kind       changes.TargetKind `json:"kind"`
	Name       string             `json:"name"`
	Plan       string             `json:"plan"`
	Parameters map[string]string  `json:"parameters"`
	Off        *bool              `json:"off"`
	Reset      bool               `json:"reset"`
	Until      *time.Time         `json:"until"` // nil: none, unlike the zero time
	For        string             `json:"for"`
}

// parseChanges reads a change, or a list of changes.
func parseChanges(text []byte, now time.Time) ([]changes.Change, error) {
	var list []request
	var into any = &list
	text = bytes.TrimLeft(text, " \t\r\n")
	if !bytes.HasPrefix(text, []byte("[")) {
		list = make([]request, 1)
		into = &list[0]
	}
	if len(text) == 0 {
		return nil, badRequest("the body is empty: want a change, or a list of changes")
	}
	if err := strictjson.Unmarshal(text, into, changes.MaxList); errors.As(err,
		new(*strictjson.TooManyError)) {
		return nil, &InputError{
			http.StatusRequestEntityTooLarge,
			fmt.Errorf("more than %d changes: send several lists", changes.MaxList),
		}
	} else if err != nil {
		return nil, badRequest("the body is not a change, or a list of changes: %w", err)
	}
	if len(list) == 0 {
		return nil, badRequest("the list of changes is empty")
	}
	out := make([]changes.Change, len(list))
	for i := range list {
		var err error
		if out[i], err = list[i].parse(now); err != nil {
			if len(list) > 1 {
				err = fmt.Errorf("change %d: %w", i+1, err)
			}
			status := http.StatusBadRequest
			if errors.Is(err, changes.ErrEnded) {
				status = http.StatusUnprocessableEntity
			}
			return nil, &InputError{status, err}
		}
	}
	return out, nil
}

func (c *request) parse(now time.Time) (changes.Change, error) {
	out := changes.Change{
		Target: changes.Target{Kind: c.Kind, Name: c.Name}, Reset: c.Reset,
		Terms: changes.Terms{Plan: c.Plan, Parameters: c.Parameters, Off: c.Off},
	}
	for name, value := range c.Parameters {
		if value == "" {
			return out, fmt.Errorf("%v: parameter %q has no value: to discard changes, send reset",
				out.Target, name)
		}
	}
	if c.For != "" {
		span, err := policyfile.ParseDuration(c.For)
		switch {
		case err != nil:
			return out, fmt.Errorf("for: %w", err)
		case c.Until != nil:
			return out, errors.New("give for or until, not both")
		}
		end := now.Add(span)
		c.Until = &end
	}
	if c.Until != nil {
		if !now.Before(*c.Until) { // also the zero time of a client in Go
			return out, fmt.Errorf("%v: %w: it is %s", out.Target, changes.ErrEnded,
				now.UTC().Format(time.RFC3339))
		}
		out.Until = c.Until.Round(0)
	}
	return out, out.Check()
}
