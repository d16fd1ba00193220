package livetest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// soak is a service whose interfaces, customers and files come and go.
type soak struct {
	*served
	rand *rand.Rand
	next int // number of the next interface
	wide int // number of interfaces of a burst
	base []string
}

const soakConfig = `interfaces:
  - {match: "a*", policy: a.yaml, direction: both}
  - {match: "q*", rate: 50mbit}
  - {match: k0, policy: customers.yaml}
state: state
`

// TestLiveServeSoak lets interfaces, customers and policies come and go, for 20 s, or with SHAPER_DEEP for 20
// minutes or SHAPER_SOAK. Afterwards the process has no more files, maps and goroutines than before.
func TestLiveServeSoak(t *testing.T) {
	skipInVM(t)
	span, growth, wide := 20*time.Second, int64(0), 8
	if nettest.Deep() {
		span, growth, wide = 20*time.Minute, 16<<20, 40
	}
	if text := os.Getenv("SHAPER_SOAK"); text != "" {
		var err error
		if span, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	s := &soak{
		rand: rand.New(rand.NewPCG(seed, 0)), wide: wide,
		base: []string{"a0 egress", "a0 ingress", "k0 egress", "q0 egress"},
	}
	s.served = newServed(t, soakConfig, map[string]string{
		"a.yaml": fixed, "customers.csv": "customer,address,plan\nkept,192.0.2.1,p\n", "customers.yaml": `
classes:
  - {name: customers, per: customer, meter: plan}
  - {name: rest}
customers: {file: customers.csv}
plans:
  p: {type: token-bucket, rate: 1mbit, burst: 10kB}
  r: {type: token-bucket, rate: 2mbit, burst: 10kB}
`,
	}, "a0", "q0", "k0")
	s.start()
	s.round()
	before, rss := s.holdings(), s.run.memory()
	var sizes []string
	rounds, shown := 1, time.Now()
	for end := time.Now().Add(span); rounds < 3 || time.Now().Before(end); rounds++ {
		s.round()
		if time.Since(shown) > span/10 {
			sizes, shown = append(sizes, fmt.Sprint(s.run.memory()>>20)), time.Now()
		}
	}
	eventually(t, func() error {
		if now := s.holdings(); more(before, now) {
			return fmt.Errorf("seed %d, %d rounds: %v", seed, rounds, differences(before, now))
		}
		return nil
	})
	left := s.run.memory()
	if growth > 0 && left > rss+growth {
		t.Errorf("seed %d: memory grew from %d to %d bytes in %d rounds", seed, rss, left, rounds)
	}
	t.Logf("%d rounds, %d interfaces, memory %d MiB after the first round, then %s, and %d at the end (load %s)", rounds,
		s.next, rss>>20, strings.Join(sizes, ", "), left>>20, loadOfMachine())
	s.wantFiles()
	old, list := s.goroutines()
	s.start()
	s.await(slices.Clone(s.base)...)
	time.Sleep(time.Second)
	const passing = 5 // some end in a moment; each interface would have left one
	if fresh, _ := s.goroutines(); old > fresh+passing {
		t.Errorf("seed %d: %d goroutines after %d rounds, %d in a new process:\n%s", seed, old, rounds, fresh, list)
	}
	s.start()
	s.await(slices.Clone(s.base)...)
	s.run.stopBySIGTERM()
	s.wantNothing()
	s.wantNothingLeft()
}

// round makes changes, and undoes all of them.
func (s *soak) round() {
	s.t.Helper()
	s.await(slices.Clone(s.base)...)
	for _, part := range s.rand.Perm(6) {
		switch part {
		case 0:
			s.interfaces()
		case 1:
			s.burst()
		case 2:
			s.customers()
		case 3:
			s.reloads()
		case 4:
			s.detaches()
		case 5:
			s.changes()
		}
	}
	s.await(slices.Clone(s.base)...)
}

func (s *soak) name(prefix string) string {
	s.next++
	return fmt.Sprintf("%s%d", prefix, s.next)
}

// interfaces lets interfaces come, and go in several ways.
func (s *soak) interfaces() {
	s.t.Helper()
	var names []string
	want := slices.Clone(s.base)
	for range 2 + s.rand.IntN(4) {
		if name := s.name("a"); s.rand.IntN(2) == 0 {
			names, want = append(names, name), append(want, name+" egress", name+" ingress")
		} else {
			name = "q" + name[1:]
			names, want = append(names, name), append(want, name+" egress")
		}
		s.addLink(names[len(names)-1])
	}
	if s.rand.IntN(3) > 0 { // otherwise they go while they are attached
		s.await(want...)
	}
	for _, name := range names {
		switch s.rand.IntN(4) {
		case 0: // a name that no entry matches
			to := s.name("z")
			s.near.Run("ip", "link", "set", name, "name", to)
			s.near.Run("ip", "link", "del", to)
		case 1:
			s.near.Move(name, s.far)
			s.far.Run("ip", "link", "del", name)
		case 2:
			s.near.Run("ip", "link", "set", name, "down")
			s.near.Run("ip", "link", "del", name)
		case 3:
			s.near.Run("ip", "link", "del", "peer-"+name)
		}
	}
	s.await(slices.Clone(s.base)...)
}

// burst creates and deletes many interfaces at once.
func (s *soak) burst() {
	s.t.Helper()
	var add, del strings.Builder
	for range s.wide {
		name := s.name("a")
		fmt.Fprintf(&add, "link add %s type veth peer name peer-%s\n", name, name)
		fmt.Fprintf(&del, "link del %s\n", name)
	}
	batch := filepath.Join(s.dir, "batch")
	rewriteFile(s.t, batch, add.String()+del.String())
	s.near.Run("ip", "-batch", batch)
	s.await(slices.Clone(s.base)...)
}

// customers adds, changes and removes customers by the API.
func (s *soak) customers() {
	s.t.Helper()
	const path = "/v1/customers?interface=k0"
	var add, move, remove []map[string]any
	for i := range 50 {
		name := fmt.Sprintf("c%d", i)
		address := fmt.Sprintf("198.51.%d.%d", s.rand.IntN(100), i)
		add = append(add, map[string]any{"name": name, "address": address, "plan": "p"})
		move = append(move, map[string]any{"name": name, "address": address + " 203.0.113." + fmt.Sprint(i), "plan": "r"})
		remove = append(remove, map[string]any{"name": name, "do": "remove"})
	}
	for _, list := range [][]map[string]any{add, move, remove} {
		wantAnswer(s.t, http.StatusOK, s.socket, path, list)
	}
	wantAnswer(s.t, http.StatusUnprocessableEntity, s.socket, path,
		map[string]any{"name": "c0", "address": "192.0.2.1", "plan": "p"}) // of another customer
}

// reloads loads good and bad files.
func (s *soak) reloads() {
	s.t.Helper()
	reload := func(status int) {
		s.t.Helper()
		eventually(s.t, func() error { // a reload of new interfaces may be running
			got, answer := askControl(s.t, s.socket, "/v1/reload", "")
			if got != status {
				return fmt.Errorf("got %d %s, want %d", got, answer, status)
			}
			return nil
		})
	}
	s.write("a.yaml", strings.Replace(fixed, "all", "other", 1))
	reload(http.StatusOK)
	s.write("a.yaml", "nonsense: 1\n")
	reload(http.StatusUnprocessableEntity)
	s.write("a.yaml", fixed)
	s.write("shaper.yaml", "interfaces: 1\n")
	reload(http.StatusUnprocessableEntity)
	s.write("shaper.yaml", "control: "+s.socket+"\n"+strings.Replace(soakConfig, "q*", "none*", 1))
	reload(http.StatusOK)
	s.await(slices.DeleteFunc(slices.Clone(s.base), func(row string) bool { return row == "q0 egress" })...)
	s.write("shaper.yaml", "control: "+s.socket+"\n"+soakConfig)
	reload(http.StatusOK)
	s.await(slices.Clone(s.base)...)
}

// detaches detaches an interface by another process, and attaches it again.
func (s *soak) detaches() {
	s.t.Helper()
	s.wantExit(0, "detach", "q0")
	s.await("a0 egress", "a0 ingress", "k0 egress", "q0 egress not shaped: detached")
	s.run.sendSignal(syscall.SIGHUP)
	s.await(slices.Clone(s.base)...)
}

// changes changes a rate, and takes that back.
func (s *soak) changes() {
	s.t.Helper()
	s.wantExit(0, "set", "q0", "queue", "all", "rate=7mbit")
	s.wantExit(0, "set", "q0", "queue", "all", "reset")
}

// anyNumber stands for the numbers in a link of /proc/PID/fd.
var anyNumber = regexp.MustCompile(`[0-9]+`)

// holdings counts the open files of the process and its children by their kind, its files in the directories
// of state, and the maps and programs that it holds.
func (s *soak) holdings() map[string]int {
	s.t.Helper()
	out := map[string]int{}
	pids := append([]string{strconv.Itoa(s.run.cmd.Process.Pid)}, s.run.children()...)
	maps, programs := map[string]bool{}, map[string]bool{}
	for i, pid := range pids {
		files, _ := filepath.Glob("/proc/" + pid + "/fd/*")
		for _, path := range files {
			kind, err := os.Readlink(path)
			if err != nil {
				continue
			}
			out[fmt.Sprintf("process %d: %s", i, anyNumber.ReplaceAllString(kind, "N"))]++
			info, _ := os.ReadFile(strings.Replace(path, "/fd/", "/fdinfo/", 1))
			for line := range strings.Lines(string(info)) {
				if id, ok := strings.CutPrefix(line, "map_id:"); ok {
					maps[id] = true
				} else if id, ok := strings.CutPrefix(line, "prog_id:"); ok {
					programs[id] = true
				}
			}
		}
	}
	out["maps"], out["programs"] = len(maps), len(programs)
	of := fmt.Sprintf("%d-", s.near.Cookie())
	files, _ := filepath.Glob("/run/shaper/" + of + "*")
	for _, path := range files {
		_, suffix, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), of), "-")
		out["file of an interface: "+suffix]++
	}
	pins, _ := filepath.Glob("/sys/fs/bpf/shaper/" + of + "*")
	out["pins"] = len(pins)
	return out
}

// children returns the processes started by a process.
func (r *process) children() (out []string) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.cmd.Process.Pid))
	for _, path := range lists {
		text, _ := os.ReadFile(path)
		out = append(out, strings.Fields(string(text))...)
	}
	return out
}

// more reports whether there is more of a kind than before. Less is no leak: on a busy machine the process
// still holds what the round before used.
func more(before, now map[string]int) bool {
	for kind, n := range now {
		if n > before[kind] {
			return true
		}
	}
	return false
}

func differences(before, now map[string]int) (out []string) {
	for kind, n := range before {
		if now[kind] != n {
			out = append(out, fmt.Sprintf("%s: %d, %d before", kind, now[kind], n))
		}
	}
	for kind, n := range now {
		if _, there := before[kind]; !there {
			out = append(out, fmt.Sprintf("%s: %d, 0 before", kind, n))
		}
	}
	slices.Sort(out)
	return out
}

// memory returns the resident memory, in bytes.
func (r *process) memory() int64 {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", r.cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		r.t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// wantFiles checks that the directory of state has only files of the interfaces that are there.
func (s *soak) wantFiles() {
	s.t.Helper()
	list, err := os.ReadDir(filepath.Join(s.dir, "state"))
	if err != nil {
		s.t.Fatal(err)
	}
	known := regexp.MustCompile(`^(a0|k0|q0)-(egress|ingress|both)\.`)
	for _, f := range list {
		if !known.MatchString(f.Name()) {
			s.t.Errorf("%s is left in the directory of state", f.Name())
		}
	}
}

// goroutines ends the process, and returns the number of its goroutines, and their list.
func (s *soak) goroutines() (n int, list string) {
	s.t.Helper()
	s.run.sendSignal(syscall.SIGQUIT)
	s.run.waitForExit()
	list = "\n" + s.run.err.unfiltered()
	if n = strings.Count(list, "\ngoroutine "); n < 5 {
		s.t.Errorf("no list of goroutines: %q", list)
	}
	return n, list
}
