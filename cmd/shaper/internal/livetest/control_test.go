package livetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Groups of the tests. They need no name.
const (
	writers = 60001
	readers = 60002
)

// controlSockets are the sockets of a shaper.
type controlSockets struct{ write, read string }

// newControlSockets returns paths of sockets in a directory that every user may search.
func newControlSockets(t *testing.T) controlSockets {
	t.Helper()
	dir, err := os.MkdirTemp("", "shaper-live")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return controlSockets{filepath.Join(dir, "write"), filepath.Join(dir, "read")}
}

func (s controlSockets) flags(more ...string) []string {
	return append([]string{
		"--control", s.write, "--control-group", fmt.Sprint(writers), "--control-read", s.read, "--control-read-group", fmt.Sprint(readers),
	}, more...)
}

// wantGone checks that the sockets do not exist.
func (s controlSockets) wantGone(t *testing.T) {
	t.Helper()
	for _, path := range []string{s.write, s.read} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// controlClient returns a client for requests to a socket.
func controlClient(socket string) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return net.Dial("unix", socket)
			},
		},
		Timeout: waitLimit,
	}
}

// askControl sends a request to a socket and returns the status and the answer. A body makes it
// a POST.
func askControl(t *testing.T, socket, path string, body any) (status int, answer string) {
	t.Helper()
	client := controlClient(socket)
	method, text := "GET", []byte(nil)
	if body != nil {
		method = "POST"
		if s, ok := body.(string); ok {
			text = []byte(s)
		} else {
			text, _ = json.Marshal(body)
		}
	}
	q, err := http.NewRequest(method, "http://shaper"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	all, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(all)
}

// wantAnswer sends a request and checks the status.
func wantAnswer(t *testing.T, status int, socket, path string, body any) string {
	t.Helper()
	got, answer := askControl(t, socket, path, body)
	if got != status {
		t.Fatalf("%s %v: got %d %s, want %d", path, body, got, answer, status)
	}
	return answer
}

// curlAs sends a request from a process of a user without privilege, who is in a group. It
// returns the status, or 0 if the process cannot connect.
func (p *pair) curlAs(group uint32, socket, path, body string) int {
	p.t.Helper()
	args := []string{
		"-sS", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", socket, "http://shaper" + path,
	}
	if body != "" {
		args = append(args, "-d", body)
	}
	cmd := exec.Command("curl", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobodyUser, Gid: nobodyUser, Groups: []uint32{group}},
	}
	out, err := cmd.Output()
	status := 0
	if _, e := fmt.Sscan(string(out), &status); e != nil || (err != nil) != (status == 0) {
		p.t.Fatalf("curl: %v, %q", err, out)
	}
	return status
}

// writeMetered writes a policy whose customers have bursts of 5000 bytes that are never refilled.
func writeMetered(t *testing.T, customers string) (policy, table string) {
	t.Helper()
	return writeTable(t, "meter: {type: token-bucket, rate: 1B/1000s, burst: 150B}",
		"  metered: {type: token-bucket, rate: 1B/1000s, burst: 5000B}\n", meteredHeader+customers)
}

const meteredHeader = "customer,address,plan,burst\n"

const turnOff = `{"kind":"customer","name":"m","off":true}`

// TestLiveControl checks who may use the sockets, that a change by POST is in force for packets,
// and that an invalid list changes nothing.
func TestLiveControl(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	before := p.deviceState()
	s := newControlSockets(t)
	policy, table := writeMetered(t, "m,192.0.2.1,metered,\nn,192.0.2.2,metered,\n")
	r := p.runShaper(s.flags("--both", "--policy", policy)...)
	wantCapabilities(t, "run --control", r.cmd.Process.Pid, unix.CAP_NET_ADMIN, unix.CAP_BPF,
		unix.CAP_PERFMON, unix.CAP_SYS_ADMIN)
	for _, c := range []struct {
		group      uint32
		socket     string
		get, write int
	}{
		{writers, s.write, 200, 200}, {writers, s.read, 0, 0}, {readers, s.write, 0, 0}, {readers, s.read, 200, 403}, {nobodyUser, s.write, 0, 0}, {nobodyUser, s.read, 0, 0},
	} {
		if got := p.curlAs(c.group, c.socket, "/v1/customers/m", ""); got != c.get {
			t.Errorf("group %d: GET at %s: got %d, want %d", c.group, c.socket, got, c.get)
		}
		if got := p.curlAs(c.group, c.socket, "/v1/changes", turnOff); got != c.write {
			t.Errorf("group %d: POST at %s: got %d, want %d", c.group, c.socket, got, c.write)
		}
	}

	frames := func(n int) {
		for range n {
			p.far.Inject("v0", packetBetween("192.0.2.1", "203.0.113.1"),
				packetBetween("192.0.2.2", "203.0.113.1"))
		}
	}
	counted := func(name string, passed, dropped int64) {
		t.Helper()
		eventually(t, func() error {
			answer := decodeJSON[struct {
				Name       string
				Directions []customerRow
			}](t, wantAnswer(t, 200, s.read, "/v1/customers/"+name, nil))
			if len(answer.Directions) != 2 || answer.Name != name || answer.Directions[0].Packets != 0 {
				return fmt.Errorf("got %+v, want nothing at egress", answer)
			}
			if got := answer.Directions[1]; got.Packets != passed+dropped ||
				got.Dropped != sentPackets(dropped) {
				return fmt.Errorf("%s: got %+v, want %d passed, %d dropped", name, got, passed, dropped)
			}
			return nil
		})
	}
	frames(2) // m is off
	counted("m", 0, 2)
	counted("n", 2, 0)
	on := wantAnswer(t, 200, s.write, "/v1/changes", []any{
		map[string]any{"kind": "customer", "name": "m", "off": false},
		map[string]any{
			"kind": "customer", "name": "n", "parameters": map[string]string{"burst": "150B"}, "for": "1h",
		},
	})
	frames(2) // n has 150 bytes now
	counted("m", 2, 2)
	counted("n", 3, 1)
	if list := decodeJSON[[]map[string]any](t, on); len(list) != 2 || list[1]["until"] == nil {
		t.Errorf("got %s, want both changes with their times", on)
	}

	changes := wantAnswer(t, 200, s.read, "/v1/changes", nil)
	for body, status := range map[string]int{
		`[` + turnOff + `,{"kind":"customer","name":"x","off":true}]`:       404,
		`[` + turnOff + `,{"kind":"customer","name":"n","plan":"x"}]`:       422,
		`[` + turnOff + `,{"kind":"customer","name":"n","plam":"metered"}]`: 400,
	} {
		wantAnswer(t, status, s.write, "/v1/changes", body)
	}
	if now := wantAnswer(t, 200, s.read, "/v1/changes", nil); now != changes ||
		strings.Count(now, `"kind"`) != 2 {
		t.Errorf("changes are %s, want %s", now, changes)
	}
	frames(1)
	counted("m", 3, 2)
	if stdout, _ := p.wantExit(0, "set", "v0"); strings.Count(stdout, "\n") != 2 {
		t.Errorf("shaper set lists %q, want 2 changes", stdout)
	}

	rewriteFile(t, table,
		meteredHeader+"m,192.0.2.1,metered,\nn,192.0.2.2,metered,\nnew,192.0.2.3,metered,\n")
	wantAnswer(t, 200, s.write, "/v1/reload", "")
	all := decodeJSON[[]struct {
		Number    int
		Customers []customerRow
	}](t, wantAnswer(t, 200, s.read, "/v1/customers?top=0&by=dropped", nil))
	if len(all) != 2 || all[1].Number != 3 || len(all[1].Customers) != 3 || all[1].Customers[0].Name != "m" ||
		all[1].Customers[0].Dropped != sentPackets(2) {
		t.Errorf("got %+v after the reload, want 3 customers", all)
	}
	rewriteFile(t, table, "nonsense")
	if answer := wantAnswer(t, 422, s.write, "/v1/reload", ""); !strings.Contains(answer, "customers.csv:1") {
		t.Errorf("got %s, want the place of the error", answer)
	}
	counted("new", 0, 0)
	wantAnswer(t, 404, s.read, "/v1/customers/x", nil)
	p.wantControlStatus(s.read)
	r.stopBySIGTERM()
	s.wantGone(t)
	p.wantState(before)
}

// wantControlStatus checks that the status and the names in the counters are those that the
// commands print.
func (p *pair) wantControlStatus(socket string) {
	p.t.Helper()
	for _, what := range []string{"status", "stats"} {
		type row = map[string]any
		var want []row
		stdout, _ := p.wantExit(0, what, "--json")
		for line := range strings.Lines(stdout) {
			want = append(want, decodeJSON[row](p.t, line))
		}
		got := decodeJSON[[]row](p.t, wantAnswer(p.t, 200, socket, "/v1/"+what, nil))
		for _, list := range [][]row{want, got} {
			for _, r := range list {
				delete(r, "rate_interval_ns")
				if classes, ok := r["classes"].([]any); ok {
					for _, c := range classes {
						delete(c.(row), "meters") // tokens
						c.(row)["rate_bit_s"] = 0
					}
				}
			}
		}
		a, _ := json.Marshal(want)
		b, _ := json.Marshal(got)
		if what == "stats" { // rates of colors differ
			a, b = fmt.Append(nil, len(want), keysOf(want[0])), fmt.Append(nil, len(got), keysOf(got[0]))
		}
		if !bytes.Equal(a, b) {
			p.t.Errorf("%s: got %s, want %s", what, b, a)
		}
	}
}

func keysOf(row map[string]any) map[string]bool {
	out := map[string]bool{}
	for key := range row {
		out[key] = true
	}
	return out
}

// TestLiveControlStuck checks that clients that send or read nothing delay neither shaping nor
// shaper detach, and that 100 changes a second are possible meanwhile.
func TestLiveControlStuck(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	s := newControlSockets(t)
	var rows strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&rows, "c%d,10.%d.%d.%d,metered,\n", i, i>>16, i>>8&255, i&255)
	}
	policy, _ := writeMetered(t, rows.String())
	r := p.runShaper(s.flags("--policy", policy)...)
	for _, socket := range []string{s.write, s.read} {
		for i := range 100 {
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			text := "GET /v1/customers?top=0 HTTP/1.1\r\nHost: x\r\n\r\n"
			if i%2 == 0 {
				text = "POST /v1/changes HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
			}
			_, _ = io.WriteString(conn, text)
		}
	}
	begin := time.Now()
	for i := range 100 {
		wantAnswer(t, 200, s.write, "/v1/changes", map[string]any{
			"kind": "customer", "name": fmt.Sprint("c", 7*i),
			"parameters": map[string]string{"rate": fmt.Sprint(i+1, "kbit")},
		})
	}
	t.Logf("100 changes took %v", time.Since(begin))
	if got := strings.Count(wantAnswer(t, 200, s.write, "/v1/changes", nil), `"kind"`); got != 100 {
		t.Errorf("%d changes are in force, want 100", got)
	}
	begin = time.Now()
	p.wantExit(0, "detach", "v0")
	if code := r.waitForExit(); code != 0 {
		t.Errorf("exit %d, stderr %q", code, &r.err)
	}
	t.Logf("the end took %v", time.Since(begin))
	s.wantGone(t)
	p.wantNothingLeft()
}

// TestLiveControlLarge checks lists of changes at their limit: clients that stop in the middle of one, and
// one that is being applied, delay neither one change nor the end.
func TestLiveControlLarge(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	s := newControlSockets(t)
	const n = 100_000 // the limit
	var rows, list strings.Builder
	for i := range n {
		fmt.Fprintf(&rows, "c%d,10.%d.%d.%d,metered,\n", i, i>>16, i>>8&255, i&255)
		fmt.Fprintf(&list, `,{"kind":"customer","name":"c%d","off":true}`, i)
	}
	all := "[" + list.String()[1:] + "]"
	policy, _ := writeMetered(t, rows.String())
	for name, end := range map[string]func(*process){
		"SIGTERM": func(r *process) { r.sendSignal(syscall.SIGTERM) },
		"detach":  func(*process) { p.wantExit(0, "detach", "v0") },
	} {
		r := p.runShaper(s.flags("--policy", policy)...)
		got := decodeJSON[[]map[string]any](t, wantAnswer(t, 200, s.write, "/v1/changes", all))
		if len(got) != n {
			t.Errorf("%s: the answer has %d changes, want %d", name, len(got), n)
		}
		wantAnswer(t, 413, s.write, "/v1/changes", "["+turnOff+list.String()+"]")
		for range 10 {
			conn, err := net.Dial("unix", s.write)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			go func() { // it waits until the end of the process
				_, _ = fmt.Fprintf(conn,
					"POST /v1/changes HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(all),
					all[:len(all)-1])
			}()
		}
		wantAnswer(t, 200, s.write, "/v1/changes", `{"kind":"customer","name":"c1","off":false}`)
		go func() { // one list is being applied at the end
			if conn, err := net.Dial("unix", s.write); err == nil {
				_, _ = fmt.Fprintf(conn,
					"POST /v1/changes HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(all), all)
				conn.Close()
			}
		}()
		end(r)
		r.wantExit(0)
		s.wantGone(t)
		p.wantNothingLeft()
	}
}

// TestLiveControlAway checks the answers while the interface is gone, and that the sockets stay.
func TestLiveControlAway(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	s := newControlSockets(t)
	policy, _ := writeMetered(t, "m,192.0.2.1,metered,\n")
	r := p.runShaper(s.flags("--policy", policy)...)
	wantAnswer(t, 200, s.write, "/v1/changes", turnOff)
	p.near.Delete("v0")
	r.err.awaitMatch(t, "is gone")
	eventually(t, func() error {
		if _, answer := askControl(t, s.read, "/v1/status",
			nil); !strings.Contains(answer, `"state":"waiting"`) {
			return fmt.Errorf("got %s, want that it waits", answer)
		}
		return nil
	})
	wantAnswer(t, 503, s.write, "/v1/changes", turnOff)
	wantAnswer(t, 503, s.read, "/v1/stats", nil)
	p.near.Veth(p.far)
	eventually(t, func() error {
		if status, answer := askControl(t, s.read, "/v1/changes", nil); status != 200 ||
			!strings.Contains(answer, `"off":true`) {
			return fmt.Errorf("got %d %s, want the change; stderr %q", status, answer, &r.err)
		}
		return nil
	})
	r.stopBySIGTERM()
	s.wantGone(t)
}

// TestLiveControlErrors checks errors at the start, and that a socket that a killed process left
// is replaced.
func TestLiveControlErrors(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	before := p.deviceState()
	s := newControlSockets(t)
	args := func(more ...string) []string {
		return append([]string{"run", "v0", "--meter", unlimitedMeter}, more...)
	}
	p.wantError(2, "--control-group needs --control", args("--control-group", "0")...)
	p.wantError(2, "--control-read-group needs --control-read",
		args("--control", s.write, "--control-read-group", "0")...)
	p.wantError(2, `there is no group "nobodies"`,
		args("--control", s.write, "--control-group", "nobodies")...)
	p.wantError(2, "--control and --control-read need two paths",
		args("--control", s.write, "--control-read", s.write)...)
	p.wantError(2, "--background leaves no process for .*--control.*",
		args("--control", s.write, "--background")...)
	rewriteFile(t, s.write, "a file")
	p.wantError(1, "control socket "+s.write+": the file exists and is not a socket",
		args("--control", s.write)...)
	p.wantState(before)
	if err := os.Remove(s.write); err != nil {
		t.Fatal(err)
	}
	r := p.runShaper("--meter", unlimitedMeter, "--control", s.write)
	p.wantError(1, "control socket "+s.write+": another process listens on it", args("--control", s.write)...)
	wantAnswer(t, 404, s.write, "/v1/customers", nil)
	wantAnswer(t, 404, s.write, "/v1/changes", turnOff)
	r.killAndWait()
	p.awaitState(before)
	if _, err := os.Lstat(s.write); err != nil {
		t.Fatal(err)
	}
	r = p.runShaper("--meter", unlimitedMeter, "--control", s.write)
	wantAnswer(t, 200, s.write, "/v1/status", nil)
	r.stopBySIGTERM()
	s.wantGone(t)
}
