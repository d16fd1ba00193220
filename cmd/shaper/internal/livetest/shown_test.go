package livetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// attachedDirections returns the attached directions that status shows.
func (p *pair) attachedDirections() (out []string) {
	p.t.Helper()
	for _, s := range p.status() {
		if s.Attached {
			out = append(out, s.Direction)
		}
	}
	return out
}

// effectJSON is a part of shaper status --json.
type effectJSON struct {
	Effective       *bool
	Problems, Notes []string
}

// effectStatus returns the status of the only shaper.
func (p *pair) effectStatus() effectJSON {
	p.t.Helper()
	stdout, _ := p.wantExit(0, "status", "--json")
	return decodeJSON[effectJSON](p.t, stdout)
}

// countedByAll returns the counter of the class "all" of the shaper on v0.
func (p *pair) countedByAll() packetCount {
	p.t.Helper()
	s := p.stats()
	return s.classNamed(p.t, "all").packetCount
}

// packetCount is a number of packets and bytes in JSON.
type packetCount struct{ Packets, Bytes int64 }

type colorStats struct {
	packetCount
	Rate           int64 `json:"rate_bit_s"`
	Dropped        map[string]packetCount
	Marked, Queued packetCount
}

type classStats struct {
	Name string
	packetCount
	Rate                    int64 `json:"rate_bit_s"`
	Green, Yellow, Red      colorStats
	Dropped, Marked, Queued packetCount
	Meters                  []struct {
		Name, Type, Per string

		Keys    struct{ Keys, Evicted, Refused int64 }
		Buckets []struct {
			Name          string
			Tokens, Burst int64
		}
	}
}

// shaperStats is a line of shaper stats --json.
type shaperStats struct {
	Interface, Direction, State, Hook, Policy, Kernel, Pacer, Peer string

	Attached, Pinned bool
	DryRun           bool   `json:"dry_run"`
	XDPMode          string `json:"xdp_mode"`
	ProgramID        uint32 `json:"program_id"`
	Process          int
	Interval         time.Duration `json:"rate_interval_ns"`
	Unconfirmed      *time.Time    `json:"unconfirmed_until"`
	Dropped          packetCount
	Classes          []classStats
	Queues           []struct {
		Name, Class string
		Delay       int64 `json:"delay_ns"`
		Bytes       int64
		Dropped     int64 // queued packets dropped by HTB; their class counts them as dropped
	}
}

// stats returns the line of shaper stats --json for the only shaper.
func (p *pair) stats(args ...string) shaperStats {
	p.t.Helper()
	list := p.statsList(args...)
	if len(list) != 1 {
		p.t.Fatalf("stats %v prints %+v: want one shaper", args, list)
	}
	return list[0]
}

// statsList returns the lines of shaper stats --json.
func (p *pair) statsList(args ...string) (list []shaperStats) {
	p.t.Helper()
	stdout, _ := p.wantExit(0, append([]string{"stats", "--json"}, args...)...)
	for line := range strings.Lines(stdout) {
		list = append(list, decodeJSON[shaperStats](p.t, line))
	}
	return list
}

func decodeJSON[T any](t *testing.T, text string) (out T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return out
}

func (s *shaperStats) classNamed(t *testing.T, name string) *classStats {
	t.Helper()
	for i := range s.Classes {
		if s.Classes[i].Name == name {
			return &s.Classes[i]
		}
	}
	t.Fatalf("no class %s in %+v", name, s)
	return nil
}

// sumOfClasses returns the sum of all classes and unclassified packets.
func (s *shaperStats) sumOfClasses() (c packetCount) {
	for i := range s.Classes {
		c.Packets += s.Classes[i].Packets
		c.Bytes += s.Classes[i].Bytes
	}
	return c
}

// scrapeMetrics reads the metrics of a process: a number by name and labels.
func (p *pair) scrapeMetrics(r *process) map[string]float64 {
	p.t.Helper()
	r.err.awaitMatch(p.t, `shaper: metrics at http://\S+/metrics\n`)
	_, url, _ := strings.Cut(r.err.String(), "metrics at ")
	url, _, _ = strings.Cut(url, "\n")
	var response *http.Response
	var err error
	host, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	var conn net.Conn
	p.near.Do(func() { conn, err = net.Dial("tcp", host) })
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	request.Close = true
	if err := request.Write(conn); err != nil {
		p.t.Fatal(err)
	}
	if response, err = http.ReadResponse(bufio.NewReader(conn), request); err != nil {
		p.t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK ||
		!strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		p.t.Fatalf("%s: %s %s", response.Status, response.Header, body)
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		at := strings.LastIndex(line, " ")
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		if out[line[:at]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			p.t.Fatal(err)
		}
	}
	return out
}

// sameMetric compares names with their labels in any order.
func sameMetric(a, b string) bool {
	split := func(s string) (string, map[string]bool) {
		name, labels, _ := strings.Cut(strings.TrimSuffix(s, "}"), "{")
		set := map[string]bool{}
		for l := range strings.SplitSeq(labels, ",") {
			set[l] = true
		}
		return name, set
	}
	an, al := split(a)
	bn, bl := split(b)
	if an != bn || len(al) != len(bl) {
		return false
	}
	for l := range al {
		if !bl[l] {
			return false
		}
	}
	return true
}

// statusLine is a line of status --json.
type statusLine struct {
	Interface, Direction, State, What string
	Attached, Pinned                  bool
	Process                           int
	ProgramID                         uint32 `json:"program_id"`
	Policy, Pacer                     string
	Unconfirmed                       *time.Time `json:"unconfirmed_until"`
}

func (p *pair) status(args ...string) (out []statusLine) {
	p.t.Helper()
	text, _ := p.wantExit(0, append([]string{"status", "--json"}, args...)...)
	for line := range strings.Lines(text) {
		out = append(out, decodeJSON[statusLine](p.t, line))
	}
	return out
}

// wantNothingLeft waits until no trace of shaper is left in near.
func (p *pair) wantNothingLeft() {
	p.t.Helper()
	eventually(p.t, func() error {
		if left := p.status(); len(left) > 0 {
			return fmt.Errorf("status shows %+v: want nothing", left)
		}
		files, err := filepath.Glob(fmt.Sprintf("/run/shaper/%d-*", p.near.Cookie()))
		if err == nil && len(files) > 0 {
			err = fmt.Errorf("left behind: %v", files)
		}
		return err
	})
}

// dropAll are arguments of a policy that drops every IP packet.
var dropAll = []string{"--meter", unlimitedMeter, "--green", "drop"}

// wantDropped checks whether UDP packets that leave through v0 are dropped.
func (p *pair) wantDropped(want bool) {
	p.t.Helper()
	egress := placement{"", "egress"}
	_, at := p.addresses(egress, false)
	in := listenUDP(p.t, p.far, at)
	sendUDP(p.t, newSender(p.t, p.near, at, 0, 0), 3, 100)
	if n := len(in.receiveAll()); (n == 0) != want {
		p.t.Errorf("%d of 3 packets arrived: want them dropped: %v", n, want)
	}
	in.conn.Close()
}
