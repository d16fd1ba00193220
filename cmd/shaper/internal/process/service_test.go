package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// fakePlane is a plane with one direction, whose reloads end with an error.
type fakePlane struct {
	plane
	err    error
	policy *policyfile.Compiled // last argument of reloaded
	calls  []string
}

func (p *fakePlane) directions() []serviceDirection    { return []serviceDirection{fakeDirection{p: p}} }
func (p *fakePlane) reloaded(now *policyfile.Compiled) { p.policy = now }
func (p *fakePlane) settle(context.Context) error      { p.calls = append(p.calls, "settle"); return nil }

func (p *fakePlane) follow(ctx context.Context) error {
	p.calls = append(p.calls, "follow")
	return nil
}

type fakeDirection struct {
	serviceDirection
	p *fakePlane
}

func (d fakeDirection) Info() *kernel.About { return &kernel.About{Interface: "v0"} }
func (d fakeDirection) Handle() live.Handle { return fakeHandle{} }
func (d fakeDirection) reload(*policyfile.Compiled, time.Time) ([]compiled.ClassChange, error) {
	return nil, d.p.err
}

type fakeHandle struct{ live.Handle }

func (fakeHandle) Check(*compiled.Plan) error { return nil }
func (fakeHandle) Notes() []string            { return nil }

// TestReloadErrors checks that a policy which is in force although something about it failed is
// adopted with a warning, and that after any other error the policy before is kept.
func TestReloadErrors(t *testing.T) {
	failed := errors.New("no space")
	for _, row := range []struct {
		err            error
		adopted        bool
		stderr, called string
	}{
		{nil, true, "", "settle"},
		{&dataplane.ActiveError{Err: failed}, true, "no space", "settle"},
		{failed, false, "", "follow"},
	} {
		var stderr bytes.Buffer
		one := policyfile.OneLiner{Green: "dscp=af11"}
		s := newService(newProcess(cli.Streams{Out: io.Discard, Err: &stderr}), notifier{},
			&Options{Policy: cli.PolicyFlags{One: one}}, "v0", kernel.Now)
		plane := &fakePlane{err: row.err}
		s.plane = plane
		file, err := changes.Open("")
		if err != nil {
			t.Fatal(err)
		}
		s.useChanges(file)
		_, err = s.reload(t.Context(), time.Time{})
		if flushed := s.flush(); flushed != nil {
			t.Fatal(flushed)
		}
		if adopted := plane.policy != nil; adopted != row.adopted || adopted != (err == nil) {
			t.Errorf("%v: adopted %v, error %v", row.err, adopted, err)
		}
		if called := strings.Join(plane.calls, " "); called != row.called {
			t.Errorf("%v: called %s, want %s", row.err, called, row.called)
		}
		if got := stderr.String(); !strings.Contains(got, row.stderr) || row.stderr == "" && got != "" {
			t.Errorf("%v: stderr %q, want %q", row.err, got, row.stderr)
		}
	}
}

// TestAskAfterEnd checks that a request which waits for the owner of a service ends with it: the end of the
// process waits for the answer to a request to detach.
func TestAskAfterEnd(t *testing.T) {
	p := newProcess(cli.Streams{Out: io.Discard, Err: io.Discard})
	s := newService(p, notifier{}, &Options{}, "v0", kernel.Now)
	begun := make(chan struct{})
	asked := make(chan error, 1)
	err := s.withAPI(func() error {
		go func() {
			ctx, stop := context.WithTimeout(context.Background(), time.Minute)
			defer stop()
			close(begun)
			asked <- s.turns.within(ctx, time.Hour, s.turns.calls, func() error { return nil })
		}()
		<-begun
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-asked; !errors.Is(err, live.ErrBusy) {
		t.Errorf("got %v, want %v", err, live.ErrBusy)
	}
}
