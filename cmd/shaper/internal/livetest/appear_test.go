package livetest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// Tests that print how fast interfaces are shaped: with SHAPER_DEEP only, on a quiet machine.

// newCrowd starts a service that shapes all interfaces a* and b* in a direction.
func newCrowd(t *testing.T, direction string) *served {
	t.Helper()
	if !nettest.Deep() {
		t.Skip("prints figures, with SHAPER_DEEP only")
	}
	policy := os.Getenv("SHAPER_APPEAR") // such as "rate: 50mbit"
	if policy == "" {
		policy = "policy: a.yaml"
	}
	s := newServed(t, fmt.Sprintf("interfaces: [{match: '[ab]*', direction: %s, %s}]\n", direction, policy), map[string]string{"a.yaml": fixed})
	s.start()
	s.run.awaitServing(s.socket)
	return s
}

// awaitServing waits until a process answers at a socket.
func (r *process) awaitServing(socket string) {
	r.t.Helper()
	eventually(r.t, func() error {
		if status, ok := tryControl(socket, "/v1/reload", nil); !ok {
			return fmt.Errorf("no answer: %d, %q", status, &r.err)
		}
		return nil
	})
}

// addPair creates a veth pair in the near namespace, and returns the index of the first one.
func (s *served) addPair(name, peer string) (index int, created time.Time) {
	s.t.Helper()
	s.near.Do(func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer})
		created = time.Now()
		if err == nil {
			var l netlink.Link
			if l, err = netlink.LinkByName(name); err == nil {
				index = l.Attrs().Index
			}
		}
		if err != nil {
			s.t.Fatal(err)
		}
	})
	return index, created
}

// awaitProgram waits until an interface has a program at egress, and returns the time.
func (s *served) awaitProgram(index int) (at time.Time) {
	s.t.Helper()
	s.near.Do(func() {
		for end := time.Now().Add(waitLimit); ; time.Sleep(50 * time.Microsecond) {
			r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXEgress})
			if at = time.Now(); err == nil && len(r.Programs) > 0 {
				return
			}
			if at.After(end) {
				s.t.Fatalf("interface %d is not shaped: %v %q", index, err, &s.run.err)
			}
		}
	})
	return at
}

// fill creates pairs of shaped interfaces until there are n interfaces.
func (s *served) fill(from, n int) {
	s.t.Helper()
	for i := from; i < n; i += 2 {
		index, _ := s.addPair(fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i))
		s.awaitProgram(index)
	}
	s.awaitShaped(n)
}

// awaitShaped waits until n directions are attached.
func (s *served) awaitShaped(n int) {
	s.t.Helper()
	eventually(s.t, func() error {
		got := 0
		for _, state := range s.states("") {
			if strings.HasSuffix(state, " attached") {
				got++
			}
		}
		if got != n {
			return fmt.Errorf("%d directions are shaped: want %d", got, n)
		}
		return nil
	})
}

func (s *served) deleteLink(index int) {
	s.t.Helper()
	s.near.Do(func() {
		if err := netlink.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}); err != nil {
			s.t.Fatal(err)
		}
	})
}

// cpuTime returns the CPU time of the process and its ended threads.
func (r *process) cpuTime() time.Duration {
	r.t.Helper()
	const sched = 2 // CPUCLOCK_SCHED, of a process: clock_getcpuclockid(3)
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^r.cmd.Process.Pid<<3|sched), &at); err != nil {
		r.t.Fatal(err)
	}
	return time.Duration(at.Nano())
}

func loadOfMachine() string {
	text, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(text))[:1], " ")
}

// TestLiveServeAppear prints how long after its creation an interface is shaped.
func TestLiveServeAppear(t *testing.T) {
	s := newCrowd(t, "egress")
	rounds := 1000
	if text := os.Getenv("SHAPER_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	was := 0
	for _, others := range []int{10, 200} {
		s.fill(was, others)
		was = others
		var list []time.Duration
		for i := range rounds {
			index, created := s.addPair(fmt.Sprintf("a-%d", i), fmt.Sprintf("p-%d", i))
			list = append(list, s.awaitProgram(index).Sub(created))
			s.deleteLink(index)
			time.Sleep(20 * time.Millisecond)
		}
		s.awaitShaped(others)
		slices.Sort(list)
		t.Logf("beside %d interfaces: %d times, median %v, 99th percentile %v, worst %v (load %s)", others,
			len(list), list[len(list)/2], list[len(list)*99/100], list[len(list)-1], loadOfMachine())
	}
	s.run.stopBySIGTERM()
	s.wantNothing()
}

// TestLiveServeMany prints the CPU time for one more interface beside more and more of them, and that of the
// process when nothing happens.
func TestLiveServeMany(t *testing.T) {
	s := newCrowd(t, "egress")
	const more, idle = 20, 10 * time.Second
	was := 0
	for _, others := range []int{2, 10, 200, 500, 1000} {
		s.fill(was, others)
		was = others
		time.Sleep(time.Second + time.Duration(others)*12*time.Millisecond) // each is checked twice at least
		begin := s.run.cpuTime()
		time.Sleep(idle)
		rest := s.run.cpuTime() - begin
		begin, at := s.run.cpuTime(), time.Now()
		var added []int
		for i := range more {
			index, _ := s.addPair(fmt.Sprintf("a-%d", i), fmt.Sprintf("p-%d", i))
			s.awaitProgram(index)
			added = append(added, index)
		}
		time.Sleep(300 * time.Millisecond) // the first check of the last one
		took := s.run.cpuTime() - begin - rest*time.Since(at)/idle
		t.Logf("beside %d interfaces: one more takes %v of CPU; idle %.2f %% of a CPU (load %s)", others,
			took/more, 100*rest.Seconds()/idle.Seconds(), loadOfMachine())
		for _, index := range added {
			s.deleteLink(index)
		}
		s.awaitShaped(others)
	}
	s.run.stopBySIGTERM()
	s.wantNothing()
}

// TestLiveServeCrowd prints the CPU time and the memory of the process for 200 interfaces in both
// directions.
func TestLiveServeCrowd(t *testing.T) {
	const n = 200
	s := newCrowd(t, "both")
	begin := s.run.cpuTime()
	for i := range n / 2 {
		s.addPair(fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i))
	}
	s.awaitShaped(2 * n)
	t.Logf("%d interfaces in both directions: %v of CPU, private memory %d kB (load %s)", n,
		s.run.cpuTime()-begin, s.run.privateMemory(), loadOfMachine())
	s.run.stopBySIGTERM()
	s.wantNothing()
}

// privateMemory returns the memory that the process shares with no other, kB.
func (r *process) privateMemory() (sum int) {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", r.cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); strings.HasPrefix(f[0], "Private_") {
			n, _ := strconv.Atoi(f[1])
			sum += n
		}
	}
	return sum
}
