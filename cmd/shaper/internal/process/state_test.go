package process

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// TestStateFile writes and reads files of state. One that is damaged, or has another content, is
// refused.
func TestStateFile(t *testing.T) {
	f := StateOptions{command: "run", dir: t.TempDir()}
	for _, content := range []string{"", "content\n"} {
		if err := f.write("v0", stateQuotas, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := f.read("v0", stateQuotas); err != nil || got == nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
	}
	if got, err := f.read("v1", stateQuotas); got != nil || err != nil {
		t.Errorf("no file: got %q, %v", got, err)
	}
	path := f.path("v0", stateQuotas)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(what string, f StateOptions, kind string, text []byte) {
		t.Helper()
		path := f.path("v0", kind)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := f.read("v0", kind); got != nil || !errors.Is(err, errState) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %q, %v", what, got, err)
		}
	}
	refuse("another kind", f, stateCustomers, text)
	refuse("another command", StateOptions{command: "tap", dir: f.dir}, stateQuotas, text)
	end := len(text) - 4
	for _, version := range []string{"0", "2"} { // complete files of an older and of a later version
		other := bytes.Replace(text[:end:end], []byte(" 1\n"), []byte(" "+version+"\n"), 1)
		refuse("version "+version, f, stateQuotas, append(other, stateSum(other)...))
	}
	for i := range text {
		refuse("cut", f, stateQuotas, text[:i])
		damaged := bytes.Clone(text)
		damaged[i] ^= 1
		refuse("damaged", f, stateQuotas, damaged)
	}
}

// statePolicy compiles a policy whose only customer has a plan p.
func statePolicy(t *testing.T, p string) *policyfile.Compiled {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "c.csv"), []byte("customer,address,plan\na,192.0.2.1,p\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := policyfile.Source{Name: "policy", Path: filepath.Join(dir, "policy.yaml"), Text: `
customers: {file: c.csv, key: src}
classes: [{name: customers, per: customer, meter: plan}]
plans:
  q: {type: token-bucket, rate: 1mbit, burst: 10kB}
  p: {type: token-bucket, rate: 1mbit, burst: 10kB` + p + `}
`}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// newStateTap returns a shaper tap without devices, with its stderr.
func newStateTap(dir string, policy *policyfile.Compiled) (*tapPlane, *bytes.Buffer) {
	stderr := &bytes.Buffer{}
	o := &TapOptions{Options: Options{State: StateOptions{command: "tap", dir: dir}}}
	c := newTapPlane(newProcess(cli.Streams{Out: io.Discard, Err: stderr}), notifier{}, o, "t0")
	shaper := tap.NewActivePolicy(policy.Plan.For(kernel.Egress), 1<<20)
	c.list = []*live.LocalTap{live.NewLocalTap("t0", "v0", kernel.Egress, shaper, policy)}
	c.openChanges()
	return c, stderr
}

// TestTapStateWritten checks that a shaper tap keeps the tokens of customers while it runs.
func TestTapStateWritten(t *testing.T) {
	policy := statePolicy(t, "")
	before := pipeline.FromPlan(policy.Plan.For(kernel.Egress))
	frame := make([]byte, 34)
	copy(frame[12:], []byte{8, 0, 0x45, 0, 0, 20})
	copy(frame[26:], []byte{192, 0, 2, 1})
	before.Process(&dataplane.Packet{Data: frame, WireLen: len(frame), Link: dataplane.LinkEthernet},
		new(dataplane.Verdict))
	tokens := before.AppendCustomers(nil, 0, 1)

	c, stderr := newStateTap(t.TempDir(), policy)
	if err := c.state.write("t0-egress", stateCustomers, tokens); err != nil {
		t.Fatal(err)
	}
	c.restoreCustomers()
	path := c.state.path("t0-egress", stateCustomers)
	for range 2 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		c.state.saved = time.Now().Add(-saveInterval)
		c.advanceChanges()
		if got, err := c.state.read("t0-egress", stateCustomers); err != nil || len(got) != len(tokens) ||
			len(got) == 0 {
			t.Errorf("%d bytes are kept, want %d: %v", len(got), len(tokens), err)
		}
	}
	c.advanceChanges()
	if err := c.flush(); err != nil || stderr.Len() > 0 {
		t.Errorf("stderr %q", stderr)
	}
}

// TestTapProblem checks that an error that does not go away is reported once.
func TestTapProblem(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, stderr := newStateTap(filepath.Join(file, "dir"),
		statePolicy(t, `, when: {at: "00:00-24:00", plan: q}`))
	off := true
	change := changes.Change{
		Target: changes.Target{Kind: changes.Customer, Name: "a"}, Terms: changes.Terms{Off: &off},
	}
	if err := c.changer.Set([]changes.Change{change}); !errors.As(err, new(*changes.UnkeptError)) {
		t.Fatalf("got %v: want that it is not kept", err)
	}
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	stderr.Reset()
	for range 3 {
		c.advanceChanges()
	}
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(stderr.String(), "\n"); n == 0 || strings.Count(stderr.String(), "state: ") != 1 {
		t.Errorf("stderr %q, want one error", stderr)
	}
}
