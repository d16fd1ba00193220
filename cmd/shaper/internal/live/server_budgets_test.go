package live

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// TestServerBudget checks the text of a budget that another process reports.
func TestServerBudget(t *testing.T) {
	t.Parallel()
	const store = "redis://127.0.0.1:6379"
	mbit := func(c, e float64, burst int64) lease.Amounts {
		return lease.Amounts{Rate: [2]int64{int64(c * 1e6), int64(e * 1e6)}, Burst: [2]int64{burst}}
	}
	has := shared.Status{
		Heard: true, Hosts: 3, Late: 1, Share: mbit(52.5, 0, 1e6), Size: mbit(100, 0, 2e6),
		Rescue: mbit(0.625, 0, 1e4), Bound: lease.Bound{Sum: mbit(100, 0, 2e6)},
		Without: lease.Bound{Sum: mbit(10, 0, 2e5)},
	}
	lost := has
	lost.Rescued, lost.Share, lost.Err = true, has.Rescue, errors.New(store+": no answer within 50ms")
	falls := lost
	falls.Share, falls.Err = mbit(0.5, 0, 1e4), nil
	learns := has
	learns.Late, learns.Learning, learns.Smallest = 0, true, "gw2:eth0:egress"
	behind := has
	behind.Replicas, behind.Bound.Once = -1, [2]int64{7 << 20}
	two := has
	two.Share, two.Size, two.Bound.Sum = mbit(40, 50, 1e6), mbit(80, 100, 2e6), mbit(80, 100, 2e6)
	for _, row := range []struct {
		st      shared.Status
		packets bool
		want    string
	}{
		{has, false, "52.5 Mbit/s of 100 Mbit/s, 3 hosts, 1 late; all together at most 100 Mbit/s with a burst of 2,000,000 bytes"},
		{has, true, "6,562,500 packets/s of 12,500,000 packets/s, 3 hosts, 1 late; all together at most 12,500,000 packets/s with a burst of 2,000,000 packets"},
		{two, false, "40 Mbit/s + 50 Mbit/s of 80 Mbit/s + 100 Mbit/s, 3 hosts, 1 late; all together at most 80 Mbit/s + 100 Mbit/s with a burst of 2,000,000 bytes"},
		{lost, false, "the rescue share of 625 kbit/s; all together at most 100 Mbit/s with a burst of 2,000,000 bytes, 10 Mbit/s with a burst of 200,000 bytes if no host reaches the server; last call: no answer within 50ms"},
		{falls, false, "500 kbit/s, then the rescue share of 625 kbit/s; all together at most 100 Mbit/s with a burst of 2,000,000 bytes, 10 Mbit/s with a burst of 200,000 bytes if no host reaches the server"},
		{learns, false, "52.5 Mbit/s of 100 Mbit/s, 3 hosts; all together at most 100 Mbit/s with a burst of 2,000,000 bytes; the server is learning the hosts' shares: no share grows; hosts disagree about the size: gw2:eth0:egress has the smallest"},
		{behind, false, "52.5 Mbit/s of 100 Mbit/s, 3 hosts, 1 late; all together at most 100 Mbit/s with a burst of 2,000,000 bytes, and once 7 MiB after a failover"},
		{shared.Status{Rescued: true}, false, "no share"},
	} {
		row.st.Floor = budgets.Unit(row.packets).Floor()
		var wire bytes.Buffer
		var got budgets.State
		if err := errors.Join(gob.NewEncoder(&wire).Encode(budgets.StateOf(&row.st, store)),
			gob.NewDecoder(&wire).Decode(&got)); err != nil {
			t.Fatal(err)
		}
		if got.String() != row.want {
			t.Errorf("%+v is\n%v: want\n%s", row.st, &got, row.want)
		}
	}
	gone := budgets.State{
		Share: budgets.Amounts(has.Share), Rescue: budgets.Amounts(has.Rescue),
		Size: budgets.Amounts(has.Size), Error: "no process renews its share",
	}
	if want := "52.5 Mbit/s, then the rescue share of 625 kbit/s; no process renews its share"; gone.String() != want {
		t.Errorf("without a process it is\n%v: want\n%s", &gone, want)
	}
}

// TestAskRun checks that a process that serves answers, and that a process that does not
// exist or has ended does not.
func TestAskRun(t *testing.T) {
	t.Parallel()
	const process = -7 // no process has this ID
	of := &kernel.About{Process: process}
	if _, ok := askRun[dataplane.Direction, []budgets.State](of, "Take", kernel.Egress); ok {
		t.Error("got an answer of a process that does not exist")
	}
	run := &Run{Shares: budgets.New(kernel.Now, t.Logf), Name: "eth0"}
	listener, err := serve(runSocket(process), run.methods)
	if err != nil {
		t.Fatal(err)
	}
	if out, ok := askRun[dataplane.Direction, []budgets.State](of, "Take", kernel.Ingress); !ok ||
		len(out) != 0 {
		t.Errorf("got %v, %v: want an answer without budgets", out, ok)
	}
	listener.Close()
	if _, ok := askRun[dataplane.Direction, []budgets.State](of, "Take", kernel.Ingress); ok {
		t.Error("got an answer of a process that no longer serves")
	}
}

// TestCalls calls a process with shapers of several interfaces. Each call reaches its own interface, and
// none another one.
func TestCalls(t *testing.T) {
	t.Parallel()
	var c Calls
	runs := map[int]*Run{}
	for index := 3; index < 6; index++ {
		name := fmt.Sprint("eth", index)
		changer := &LockedChanger{Changer: newTestChanger(t)}
		changer.Path = name
		calls := make(chan func())
		go func() {
			for f := range calls {
				f()
			}
		}()
		t.Cleanup(func() { close(calls) })
		runs[index] = &Run{Name: name, Changer: changer, Calls: calls, Heard: new(Heard)}
		changer.SetProblem(name)
		if err := c.Add(index, runs[index]); err != nil {
			t.Fatal(err)
		}
	}
	about := func(index int) *kernel.About { return &kernel.About{Process: os.Getpid(), Index: index} }
	problem := func(index int) string {
		reply, ok := askRun[struct{}, changesReply](about(index), "Changes", struct{}{})
		if !ok {
			return ""
		}
		now, err := reply.read()
		if err != nil {
			t.Fatal(err)
		}
		return now.Problem
	}
	for index, r := range runs {
		if got := problem(index); got != r.Name {
			t.Errorf("interface %d: got %q, want %q", index, got, r.Name)
		}
	}
	if got := problem(9); got != "" {
		t.Errorf("an interface without a shaper: got %q", got)
	}
	if client := connect(runSocket(os.Getpid()), os.Getpid()); client == nil {
		t.Error("no connection")
	} else if err := client.call("Changes", struct{}{}, &changesReply{}); !errors.Is(err, errNoMethod) {
		t.Errorf("a call for no interface: %v", err)
	}
	for index, r := range runs {
		if err := c.Remove(r); err != nil {
			t.Error(err)
		}
		if got := problem(index); got != "" {
			t.Errorf("removed interface %d: got %q", index, got)
		}
	}
	if client := connect(runSocket(os.Getpid()), os.Getpid()); client != nil {
		t.Error("the socket is still open")
	}
}
