package livetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// served is a shaper serve with its directory, in the near namespace of a pair.
type served struct {
	*pair
	dir, socket string
	run         *process
}

// fixed is a policy whose meters never refill, so that tokens are countable.
const fixed = "classes:\n  - {name: all, meter: {type: token-bucket, rate: 1B/1000s, burst: 150kB}}\n"

// newServed writes a configuration, in which SOCKET is the path of a socket, and policies by name. It adds
// veth pairs to the near namespace.
func newServed(t *testing.T, config string, policies map[string]string, links ...string) *served {
	t.Helper()
	s := &served{pair: newPair(t), dir: t.TempDir(), socket: newControlSockets(t).write}
	s.write("shaper.yaml", "control: "+s.socket+"\n"+config)
	for name, text := range policies {
		s.write(name, text)
	}
	for _, name := range links {
		s.addLink(name)
	}
	return s
}

func (s *served) write(name, text string) {
	s.t.Helper()
	rewriteFile(s.t, filepath.Join(s.dir, name), text)
}

func (s *served) addLink(name string) {
	s.t.Helper()
	s.near.Run("ip", "link", "add", name, "type", "veth", "peer", "name", "peer-"+name)
	s.near.Run("ip", "link", "set", name, "up")
}

func (s *served) start() {
	s.t.Helper()
	s.run = s.startShaper("serve", s.dir)
}

// states returns the shapers and what is not shaped, one a line: interface, direction, state without
// processes and users.
func (s *served) states(query string) (out []string) {
	s.t.Helper()
	var list []struct{ Interface, Direction, State string }
	if err := json.Unmarshal([]byte(wantAnswer(s.t, 200, s.socket, "/v1/status"+query, nil)), &list); err != nil {
		s.t.Fatal(err)
	}
	for _, row := range list {
		state, _, _ := strings.Cut(row.State, " by ")
		state, _, _ = strings.Cut(state, ", held")
		out = append(out, row.Interface+" "+row.Direction+" "+state)
	}
	slices.Sort(out)
	return out
}

// await waits until the states are these, which are attached if they have no text after the direction.
func (s *served) await(want ...string) {
	s.t.Helper()
	for i, w := range want {
		if strings.Count(w, " ") == 1 {
			want[i] += " attached"
		}
	}
	slices.Sort(want)
	eventually(s.t, func() error {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			return fmt.Errorf("%w: %q", err, &s.run.err)
		}
		conn.Close()
		if got := s.states(""); !slices.Equal(got, want) {
			return fmt.Errorf("got\n%s\nwant\n%s\n%q", strings.Join(got, "\n"), strings.Join(want, "\n"), &s.run.err)
		}
		return nil
	})
}

// wantNothing checks that nothing of shaper is left in the near namespace.
func (s *served) wantNothing() {
	s.t.Helper()
	eventually(s.t, func() error {
		if out, _ := s.wantExit(0, "status"); !strings.HasPrefix(out, "no shaper is attached") {
			return errors.New(out)
		}
		return nil
	})
}

// TestLiveServe follows interfaces: chosen by name and by pattern, created, renamed, down and up, moved to
// another namespace, deleted, and one that another process detaches.
func TestLiveServe(t *testing.T) {
	s := newServed(t, `interfaces:
  - {match: v0, policy: up.yaml, direction: both}
  - {match: "veth[0-9]*", rate: 50mbit}
  - {match: "*", policy: up.yaml, direction: ingress, hook: xdp}
`, map[string]string{"up.yaml": fixed}, "veth1")
	s.near.Move("peer-veth1", s.far)
	s.near.Run("ip", "link", "set", "lo", "up")
	s.start()
	s.await("v0 egress", "v0 ingress", "veth1 egress")
	s.addLink("veth22")
	s.await("v0 egress", "v0 ingress", "veth1 egress", "veth22 egress", "peer-veth22 ingress")
	before := s.states("")
	s.near.Run("ip", "link", "set", "veth22", "down")
	s.near.Run("ip", "link", "set", "veth22", "up")
	s.near.Run("ip", "link", "set", "peer-veth22", "name", "renamed")
	s.await("v0 egress", "v0 ingress", "veth1 egress", "veth22 egress", "renamed ingress")
	if len(before) != len(s.states("")) {
		t.Errorf("a flap changed %v", before)
	}
	s.wantExit(0, "detach", "veth1")
	s.await("v0 egress", "v0 ingress", "veth1 egress not shaped: detached",
		"veth22 egress", "renamed ingress")
	s.near.Run("ip", "link", "del", "veth22")
	s.await("v0 egress", "v0 ingress", "veth1 egress not shaped: detached")
	s.run.sendSignal(syscall.SIGHUP)
	s.await("v0 egress", "v0 ingress", "veth1 egress")
	s.near.Move("veth1", s.far)
	s.await("v0 egress", "v0 ingress")
	s.run.stopBySIGTERM()
	s.wantNothing()
}

// TestLiveServeReload changes the files of a running service. A policy with an error changes none of its
// interfaces, and others change; an error in the configuration changes nothing.
func TestLiveServeReload(t *testing.T) {
	const config = `interfaces:
  - {match: "a*", policy: a.yaml}
  - {match: "b*", policy: b.yaml}
`
	s := newServed(t, config, map[string]string{"a.yaml": fixed, "b.yaml": fixed}, "a0", "a1", "b0")
	s.start()
	s.await("a0 egress", "a1 egress", "b0 egress")
	classes := func() string {
		t.Helper()
		var list []struct {
			Interface string
			Classes   []struct{ Name string }
		}
		if err := json.Unmarshal([]byte(wantAnswer(t, 200, s.socket, "/v1/stats", nil)), &list); err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, row := range list {
			out += row.Interface + ":" + row.Classes[0].Name + " "
		}
		return out
	}
	reload := func(status int, want string, query ...string) {
		t.Helper()
		answer := wantAnswer(t, status, s.socket, "/v1/reload"+strings.Join(query, ""), "")
		if got := classes(); got != want {
			t.Errorf("after a reload %v: classes %s, want %s: %s %q", query, got, want, answer, &s.run.err)
		}
	}
	next := strings.Replace(fixed, "all", "next", 1)
	s.write("a.yaml", next)
	s.write("b.yaml", "nonsense: 1\n")
	reload(422, "a0:next a1:next b0:all ")
	s.write("b.yaml", strings.Replace(fixed, "all", "other", 1))
	s.write("a.yaml", fixed)
	reload(200, "a0:next a1:next b0:other ", "?interface=b*")
	reload(404, "a0:next a1:next b0:other ", "?interface=c*")
	s.write("shaper.yaml", config+"  - {match: c0, policy: c.yaml}\n") // there is no such file
	reload(422, "a0:next a1:next b0:other ")
	s.write("shaper.yaml", strings.Replace(config, "a.yaml", "a.yaml, gso-limit: 7", 1))
	reload(422, "a0:next a1:next b0:other ")
	s.write("shaper.yaml", "control: "+s.socket+"\ninterfaces:\n  - {match: \"b*\", policy: a.yaml, direction: ingress}\n")
	wantAnswer(t, 200, s.socket, "/v1/reload", "")
	s.await("b0 ingress")
	s.addLink("b7")
	s.await("b0 ingress", "b7 ingress")
	if got := classes(); got != "b0:all b7:all " {
		t.Errorf("classes %s", got)
	}
	s.run.stopBySIGTERM()
	s.wantNothing()
}

// TestLiveServeTogether checks that a policy which one interface cannot run changes no interface.
func TestLiveServeTogether(t *testing.T) {
	s := newServed(t, `interfaces:
  - {match: "a*", policy: a.yaml}
  - {match: "b*", policy: a.yaml, direction: ingress, hook: xdp}
`, map[string]string{"a.yaml": fixed}, "a0", "b0")
	s.start()
	s.await("a0 egress", "b0 ingress")
	s.write("a.yaml", "classes:\n  - {name: marked, match: {mark: 7}, green: pass}\n") // not by XDP
	answer := wantAnswer(t, 422, s.socket, "/v1/reload", "")
	if !strings.Contains(answer, "b0: ") || !strings.Contains(answer, "a.yaml") {
		t.Errorf("the error names neither the interface nor the file: %s", answer)
	}
	for _, name := range []string{"a0", "b0"} {
		if out, _ := s.wantExit(0, "stats", name, "--json"); strings.Contains(out, `"name":"marked"`) {
			t.Errorf("%s was changed: %s", name, out)
		}
	}
	s.addLink("a1") // it gets the policy of the others
	s.await("a0 egress", "a1 egress", "b0 ingress")
}

// TestLiveServeChanges makes changes at one interface, and at several chosen by a pattern: at all of them or
// at none.
func TestLiveServeChanges(t *testing.T) {
	queued := "queues: {q: {rate: 50mbit, limit: 50ms}}\nclasses: [{name: all, green: {queue: q}}]\n"
	s := newServed(t, `interfaces:
  - {match: "a*", policy: a.yaml}
  - {match: "b*", policy: b.yaml}
`, map[string]string{"a.yaml": queued, "b.yaml": strings.ReplaceAll(queued, "q:", "p:")}, "a0", "a1", "b0")
	s.write("b.yaml", "queues: {p: {rate: 50mbit, limit: 50ms}}\nclasses: [{name: all, green: {queue: p}}]\n")
	s.start()
	s.await("a0 egress", "a1 egress", "b0 egress")
	change := map[string]any{"kind": "queue", "name": "q", "parameters": map[string]string{"rate": "7mbit"}}
	count := func(name string) int {
		t.Helper()
		var list []any
		text := wantAnswer(t, 200, s.socket, "/v1/changes?interface="+url.QueryEscape(name), nil)
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	wantAnswer(t, 400, s.socket, "/v1/changes", change)
	wantAnswer(t, 404, s.socket, "/v1/changes?interface=*0", change) // b0 has no such queue
	if count("a0")+count("a1")+count("b0") != 0 {
		t.Error("a change of several interfaces was made at some of them")
	}
	wantAnswer(t, 200, s.socket, "/v1/changes?interface=a*", change)
	if count("a0") != 1 || count("a1") != 1 || count("b0") != 0 {
		t.Error("a change of two interfaces was not made at both")
	}
	s.wantExit(0, "set", "b0", "queue", "p", "rate=8mbit") // to the interface that it names
	s.wantExit(1, "set", "b0", "queue", "q", "rate=8mbit")
	for name, want := range map[string]string{"a1": "7 Mbit/s", "b0": "8 Mbit/s"} {
		if out, _ := s.wantExit(0, "set", name); !strings.Contains(out, strings.Fields(want)[0]+"mbit") {
			t.Errorf("%s: %s, want %s", name, out, want)
		}
	}
	wantAnswer(t, 400, s.socket, "/v1/changes", nil)
}

// TestLiveServeKilled kills the process. Interfaces that are not pinned are left whole, pinned ones go on
// and are taken over with their counters and tokens.
func TestLiveServeKilled(t *testing.T) {
	s := newServed(t, `interfaces:
  - {match: v0, policy: a.yaml, pin: true}
  - {match: "a*", policy: a.yaml, direction: both}
  - {match: "q*", rate: 50mbit, direction: both}
`, map[string]string{"a.yaml": fixed}, "a0", "q0", "q1")
	s.start()
	all := []string{
		"v0 egress attached, pinned", "a0 egress", "a0 ingress", "q0 egress", "q0 ingress", "q1 egress", "q1 ingress",
	}
	s.await(all...)
	count := func() int64 {
		t.Helper()
		out, _ := s.wantExit(0, "stats", "v0", "--json")
		var row struct{ Classes []struct{ Packets int64 } }
		if err := json.Unmarshal([]byte(out), &row); err != nil {
			t.Fatal(err)
		}
		return row.Classes[0].Packets
	}
	sender := newSender(t, s.near, net.IP{10, 0, 0, 2}, 0, 0)
	send := func() {
		for sent := 0; sent < 3; { // the other end refuses them
			if _, err := sender.Write(make([]byte, 100)); err == nil {
				sent++
			} else if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatal(err)
			}
		}
	}
	send()
	was := count()
	if was < 3 {
		t.Fatalf("%d packets counted", was)
	}
	s.run.killAndWait()
	eventually(t, func() error {
		out, _ := s.wantExit(0, "status", "--json")
		if n := strings.Count(out, "\n"); n != 1 || !strings.Contains(out, `"v0"`) {
			return fmt.Errorf("left: %s", out)
		}
		if out := s.near.Run("ip", "-o", "link"); strings.Contains(out, "shaper-") || strings.Contains(out, "htb") {
			return fmt.Errorf("left: %s", out)
		}
		return nil
	})
	send()
	if now := count(); now < was+3 {
		t.Errorf("the pinned shaper counted %d packets, after %d", now, was)
	}
	was = count()
	s.start()
	s.await(all...)
	if now := count(); now < was {
		t.Errorf("the new process has %d packets, of %d", now, was)
	}
	s.run.stopBySIGTERM()
	if out, _ := s.wantExit(0, "status", "--json"); strings.Count(out, "\n") != 1 {
		t.Errorf("after the end: %s", out)
	}
	s.wantExit(0, "detach", "--all")
	s.wantNothing()
}

// TestLiveServeChurn creates and deletes interfaces. Afterwards the process has no more files, maps and
// programs than before, and no files are left in the directories of state.
func TestLiveServeChurn(t *testing.T) {
	s := newServed(t, `interfaces:
  - {match: v0, policy: a.yaml}
  - {match: "a*", policy: a.yaml, direction: both}
state: state
`, map[string]string{"a.yaml": fixed}, "a0")
	s.start()
	s.await("v0 egress", "a0 egress", "a0 ingress")
	files := func() (n int) {
		list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.run.cmd.Process.Pid))
		return len(list)
	}
	before := files()
	const rounds, width = 4, 5
	for round := range rounds {
		var names []string
		for i := range width {
			names = append(names, fmt.Sprintf("a%d-%d", round, i))
			s.addLink(names[i])
		}
		want := []string{"v0 egress", "a0 egress", "a0 ingress"}
		for _, name := range names {
			want = append(want, name+" egress", name+" ingress")
		}
		if round%2 == 0 { // otherwise they are deleted while they are attached
			s.await(want...)
		}
		for _, name := range names {
			s.near.Run("ip", "link", "del", name)
		}
		s.await("v0 egress", "a0 egress", "a0 ingress")
	}
	eventually(t, func() error {
		if now := files(); now > before+2 { // of a timer or a connection
			return fmt.Errorf("%d open files, %d before", now, before)
		}
		return nil
	})
	eventually(t, func() error {
		state, err := os.ReadDir(filepath.Join(s.dir, "state"))
		for _, f := range state {
			if strings.HasPrefix(f.Name(), "a") && !strings.HasPrefix(f.Name(), "a0-egress") &&
				!strings.HasPrefix(f.Name(), "a0-ingress") && !strings.HasPrefix(f.Name(), "a0-both") {
				err = errors.Join(err, fmt.Errorf("%s is left", f.Name()))
			}
		}
		return err
	})
	s.run.stopBySIGTERM()
	s.wantNothing()
}

// TestLiveServeFiles rejects configurations, each with its place.
func TestLiveServeFiles(t *testing.T) {
	p := newPair(t)
	dir := t.TempDir()
	p.wantError(2, `configuration "[^"]*shaper.yaml": no such file.*`, "serve", dir)
	for text, want := range map[string]string{
		"interfaces: [{match: v0}]\n":                                           `.*shaper.yaml:1:14: give the interfaces either policy: FILE or rate: RATE`,
		"interfaces: [{rate: 1mbit}]\n":                                         `.*shaper.yaml:1:14: match is missing.*`,
		"interfaces: [{match: v0, rate: 1mbit, pni: true}]\n":                   `.*shaper.yaml:1:39: unknown key "pni" in an entry of interfaces: want one of .*pin.*`,
		"interfaces: [{match: 'v[', rate: 1mbit}]\n":                            `.*shaper.yaml:1:22: match: pattern .*`,
		"interfaces: [{match: v0, rate: 1mbit}, {match: v0, rate: 2mbit}]\n":    `.*shaper.yaml:1:40: match "v0" is there twice.*`,
		"interfaces: [{match: v0, rate: 1mbit, hook: xdp}]\n":                   `.*shaper.yaml:1:45: hook: xdp cannot queue packets, as rate does: leave it out`,
		"interfaces: [{match: v0, policy: a.yaml, hook: xdp}]\n":                `.*shaper.yaml:1:48: hook: xdp sees only arriving packets.*`,
		"interfaces: [{match: v0, rate: 1mbit, gso-limit: 7}]\n":                `.*shaper.yaml:1:14: gso-limit "7": want auto, off, or 1500 to 524280 bytes`,
		"interfaces: [{match: v0, policy: none.yaml}]\n":                        `policy ".*none.yaml": no such file or directory`,
		"interfaces: [{match: v0, rate: 1mbit}]\nmetrics: nonsense:x\n":         `.*metrics.*`,
		"interfaces: [{match: v0, rate: 1mbit}]\ncontrol-group: nobody-there\n": `.*control-group.*`,
		"interfaces: {match: v0}\n":                                             `.*shaper.yaml:1:13: interfaces must be a list.*`,
	} {
		rewriteFile(t, filepath.Join(dir, "shaper.yaml"), text)
		p.wantError(2, want, "serve", dir)
	}
}

// TestLiveServeRestart restarts the process again and again while packets are sent. Every packet is metered,
// and all of them together get the tokens of one burst.
func TestLiveServeRestart(t *testing.T) {
	s := newServed(t, "interfaces: [{match: v0, policy: a.yaml, pin: true}]\n", map[string]string{"a.yaml": fixed})
	s.start()
	s.await("v0 egress attached, pinned")
	sink := s.far.Sniff("v0")
	sender := newSender(t, s.near, net.IP{10, 0, 0, 2}, 0, 0)
	stop, sent := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				sent <- n
				return
			case <-time.After(time.Millisecond):
			}
			if _, err := sender.Write(make([]byte, 972)); err == nil { // 1000 bytes with UDP and IP
				n++
			}
		}
	}()
	for i := range 4 {
		if i%2 == 0 {
			s.run.stopBySIGTERM()
		} else {
			s.run.killAndWait()
		}
		s.start()
		s.await("v0 egress attached, pinned")
	}
	type counts struct{ Packets, Bytes int64 }
	var c struct {
		counts
		Green, Red counts
	}
	read := func() {
		t.Helper()
		out, _ := s.wantExit(0, "stats", "v0", "--json")
		var row struct{ Classes []json.RawMessage }
		if err := json.Unmarshal([]byte(out), &row); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(row.Classes[0], &c); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error { // the burst is used up
		if read(); c.Red.Packets == 0 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	close(stop)
	want := int64(<-sent)
	read()
	passed, other := int64(0), int64(0)
	for _, f := range sink.Stop() {
		if len(f.Data) == 14+1000 {
			passed++
		} else {
			other++
		}
	}
	if c.Packets < want || c.Packets > want+other || c.Green.Bytes > 150_000 || passed > 150 {
		t.Errorf("%d packets were sent, and %d others; counted: %+v, passed: %d", want, other, c, passed)
	}
}

// TestLiveServeNotify checks the notifications of a service manager: it is ready when all interfaces are
// shaped, it is alive, and it reloads.
func TestLiveServeNotify(t *testing.T) {
	skipInVM(t)
	const config = "interfaces: [{match: 'a*', policy: a.yaml}]\n"
	s := newServed(t, config, map[string]string{"a.yaml": fixed}, "a0", "a1")
	address := filepath.Join(t.TempDir(), "notify")
	m := s.newManager(address)
	s.run = s.startService(address, "serve", s.dir)
	status := "READY=1\nSTATUS=shaping the interfaces of " + regexp.QuoteMeta(filepath.Join(s.dir, "shaper.yaml"))
	m.wantNotification(status)
	if got := s.states(""); !slices.Equal(got, []string{"a0 egress attached", "a1 egress attached"}) {
		t.Errorf("ready with %v", got)
	}
	m.wantNotification("WATCHDOG=1")
	s.write("a.yaml", "nonsense: 1\n")
	s.run.sendSignal(syscall.SIGHUP)
	next := func(want string) {
		t.Helper()
		for {
			if got := m.wantNotification("(?s)(.*)")[1]; got != "WATCHDOG=1" {
				if !regexp.MustCompile("^" + want + "$").MatchString(got) {
					t.Fatalf("notification %q, want %q", got, want)
				}
				return
			}
		}
	}
	next(`RELOADING=1\nMONOTONIC_USEC=\d+`)
	next(status + `; the last reload failed: .*a.yaml:1:1: .*`)
	s.write("a.yaml", strings.Replace(fixed, "all", "other", 1))
	s.run.sendSignal(syscall.SIGHUP)
	next(`RELOADING=1\nMONOTONIC_USEC=\d+`)
	next(status)
	s.run.sendSignal(syscall.SIGTERM)
	next("STOPPING=1")
	s.run.waitForExit()
}
