package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// Change is the JSON form of a change.
type Change struct {
	Kind       changes.Kind      `json:"kind"`
	Name       string            `json:"name"`
	Plan       string            `json:"plan,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"` // in the syntax of policies, such as rate: 50mbit
	Off        *bool             `json:"off,omitempty"`
	Reset      bool              `json:"reset,omitempty"`
	Until      time.Time         `json:"until,omitzero"`
	For        string            `json:"for,omitempty"` // duration instead of Until; not in answers

	// Only in answers.
	By       string    `json:"by,omitempty"`        // "quota", or the tool: "shaper set" or "the API"
	User     string    `json:"user,omitempty"`      // who made the change
	Since    time.Time `json:"since,omitzero"`      // time of the change
	InPolicy *Terms    `json:"in_policy,omitempty"` // what the policy says instead
	State    string    `json:"state,omitempty"`     // why the shaper may not be as the change says; "": it is
}

// Terms are the terms of a customer, link or queue in the policy.
type Terms struct {
	Plan       string            `json:"plan,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
}

// ListChanges returns the JSON form of changes.
func ListChanges(list []changes.Change, now time.Time) []Change {
	out := []Change{}
	for i := range list {
		row := ChangeOf(&list[i])
		if !row.Until.IsZero() && !now.Before(row.Until) {
			row.State = live.StateEnded
		}
		out = append(out, row)
	}
	return out
}

// ChangeOf returns the JSON form of a change.
func ChangeOf(c *changes.Change) Change {
	row := Change{
		Kind: c.Kind, Name: c.Name, Plan: c.Plan, Parameters: c.Parameters, Off: c.Off, Reset: c.Reset, Until: c.Until,
		By: c.Author.With, User: c.Author.User, Since: c.Since,
	}
	if c.By == changes.ByQuota {
		row.By = "quota"
	}
	return row
}

// parseChanges reads a change, or a list of changes.
func parseChanges(text []byte, now time.Time) ([]changes.Change, error) {
	var list []Change
	var into any = &list
	text = bytes.TrimLeft(text, " \t\r\n")
	if !bytes.HasPrefix(text, []byte("[")) {
		list = make([]Change, 1)
		into = &list[0]
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); errors.Is(err, io.EOF) {
		return nil, errors.New("the body is empty: want a change, or a list of changes")
	} else if err != nil {
		return nil, fmt.Errorf("the body is not a change, or a list of changes: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the body continues after its end: want one change, or one list of changes")
	}
	if len(list) == 0 {
		return nil, errors.New("the list of changes is empty")
	}
	out := make([]changes.Change, len(list))
	for i := range list {
		var err error
		if out[i], err = list[i].parse(now); err != nil && len(list) > 1 {
			return nil, fmt.Errorf("change %d: %w", i+1, err)
		} else if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (c *Change) parse(now time.Time) (changes.Change, error) {
	out := changes.Change{
		Target: changes.Target{Kind: c.Kind, Name: c.Name}, Reset: c.Reset, Until: c.Until.Round(0),
		Terms: changes.Terms{Plan: c.Plan, Parameters: c.Parameters, Off: c.Off},
	}
	switch {
	case c.By != "":
		return out, errors.New("by cannot be set")
	case c.User != "":
		return out, errors.New("user cannot be set")
	case !c.Since.IsZero():
		return out, errors.New("since cannot be set")
	case c.InPolicy != nil:
		return out, errors.New("in_policy cannot be set")
	case c.State != "":
		return out, errors.New("state cannot be set")
	}
	for name, value := range c.Parameters {
		if value == "" {
			return out, fmt.Errorf("%v: parameter %q has no value: to discard changes, send reset", out.Target, name)
		}
	}
	if c.For != "" {
		span, err := policyfile.ParseDuration(c.For)
		switch {
		case err != nil:
			return out, fmt.Errorf("for: %w", err)
		case span <= 0:
			return out, fmt.Errorf("for: %q is not a time to come", c.For)
		case !c.Until.IsZero():
			return out, errors.New("give for or until, not both")
		}
		out.Until = now.Add(span).Round(0)
	}
	if err := out.Check(); err != nil {
		return out, err
	}
	if !out.Until.IsZero() && !now.Before(out.Until) {
		return out, fmt.Errorf("%v: the change would end before it begins", out.Target)
	}
	return out, nil
}
