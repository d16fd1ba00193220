package control

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// author returns who sent a request.
func author(q *http.Request) changes.Author {
	return changes.Author{User: userOf(q.Context()), With: "the API"}
}

// wantNoBody returns an error if a request has a body.
func wantNoBody(q *http.Request, what string) error {
	if n, _ := io.Copy(io.Discard, io.LimitReader(q.Body, 1)); n > 0 {
		return badRequest("%s", what)
	}
	return nil
}

func (h *handler) postReload(w http.ResponseWriter, q *http.Request) error {
	if err := wantNoBody(q, "a reload has no body: it reads the policy file again"); err != nil {
		return err
	}
	confirm := time.Duration(0)
	if values := q.URL.Query(); values.Has("confirm") {
		var err error
		if confirm, err = policyfile.ParseDuration(values.Get("confirm")); err == nil && confirm <= 0 {
			err = errors.New("it must be above zero")
		}
		if err != nil {
			return badRequest("confirm: %w", err)
		}
	}
	out, err := h.api.Reload(q.Context(), confirm)
	h.answers.forget()
	if out.Shapers == nil {
		out.Shapers = []ReloadedShaper{}
	}
	return respondValue(w, out, err)
}

func (h *handler) postConfirm(w http.ResponseWriter, q *http.Request) error {
	if err := wantNoBody(q, "a confirmation has no body"); err != nil {
		return err
	}
	out, err := h.api.Confirm(q.Context(), author(q))
	h.answers.forget()
	return respondValue(w, out, err)
}

func (h *handler) postDetach(w http.ResponseWriter, q *http.Request) error {
	if err := wantNoBody(q, "a request to detach has no body"); err != nil {
		return err
	}
	values := q.URL.Query()
	switch all := values.Get("all"); {
	case values.Has("all") && all != "true":
		return badRequest("all %q: want true", all)
	case values.Has("all") == (h.pattern != ""):
		return badRequest("give the parameter interface, a name or a pattern, or all=true")
	}
	var directions []dataplane.Direction
	switch text := values.Get("direction"); {
	case !values.Has("direction"), text == "both":
	case text == dataplane.Egress.String():
		directions = []dataplane.Direction{dataplane.Egress}
	case text == dataplane.Ingress.String():
		directions = []dataplane.Direction{dataplane.Ingress}
	default:
		return badRequest("direction %q: want egress, ingress or both", text)
	}
	h.last.Add(1)
	defer h.last.Add(-1)
	out, err := h.api.Detach(q.Context(), directions, author(q))
	h.answers.forget()
	if err := respondValue(w, out, err); err != nil {
		return err
	}
	_ = http.NewResponseController(w).Flush() // the client may be gone
	return nil
}

// lastTime is the longest time for which the end of the server waits for answers to requests that may have
// caused it.
const lastTime = time.Second

// awaitLast waits for requests that end the process.
func (s *shared) awaitLast() {
	for end := time.Now().Add(lastTime); s.last.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}
