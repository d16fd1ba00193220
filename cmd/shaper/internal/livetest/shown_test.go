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

// directions are those that status says are attached.
func (p *pair) directions() (out []string) {
	p.t.Helper()
	for _, s := range p.status() {
		if s.Attached {
			out = append(out, s.Direction)
		}
	}
	return out
}

// effect is what shaper status says of the only shaper.
type effect struct {
	Effective       *bool
	Problems, Notes []string
}

func (p *pair) effect() effect {
	p.t.Helper()
	stdout, _ := p.do(0, "status", "--json")
	return decode[effect](p.t, stdout)
}

// counted is what the shaper on v0 counts of its only class.
func (p *pair) counted() count {
	p.t.Helper()
	s := p.stats()
	return s.class(p.t, "all").count
}

// count is a number of packets and bytes in JSON.
type count struct{ Packets, Bytes int64 }

type colorStats struct {
	count
	Rate           int64 `json:"rate_bit_s"`
	Dropped        map[string]count
	Marked, Queued count
}

type classStats struct {
	Name string
	count
	Rate                    int64 `json:"rate_bit_s"`
	Green, Yellow, Red      colorStats
	Dropped, Marked, Queued count
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
	Unconfirmed      *time.Time `json:"unconfirmed_until"`
	Dropped          count
	Classes          []classStats
	Queues           []struct {
		Name, Class string
		Delay       int64 `json:"delay_ns"`
		Bytes       int64
		Dropped     int64 // by HTB, of those that were queued: their class counts them as dropped
	}
}

// stats returns what shaper stats says of the only shaper.
func (p *pair) stats(args ...string) shaperStats {
	p.t.Helper()
	list := p.statsList(args...)
	if len(list) != 1 {
		p.t.Fatalf("stats %v: %+v: want one shaper", args, list)
	}
	return list[0]
}

// statsList returns what shaper stats says of all shapers.
func (p *pair) statsList(args ...string) (list []shaperStats) {
	p.t.Helper()
	stdout, _ := p.do(0, append([]string{"stats", "--json"}, args...)...)
	for line := range strings.Lines(stdout) {
		list = append(list, decode[shaperStats](p.t, line))
	}
	return list
}

func decode[T any](t *testing.T, text string) (out T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return out
}

func (s *shaperStats) class(t *testing.T, name string) *classStats {
	t.Helper()
	for i := range s.Classes {
		if s.Classes[i].Name == name {
			return &s.Classes[i]
		}
	}
	t.Fatalf("no class %s in %+v", name, s)
	return nil
}

// sum is what all classes counted, with what no class took.
func (s *shaperStats) sum() (c count) {
	for i := range s.Classes {
		c.Packets += s.Classes[i].Packets
		c.Bytes += s.Classes[i].Bytes
	}
	return c
}

// scrape reads what --metrics serves, a number by name and labels.
func (p *pair) scrape(r *process) map[string]float64 {
	p.t.Helper()
	r.err.await(p.t, `shaper: metrics at http://\S+/metrics\n`)
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
	if response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
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

// shown is a line of status --json.
type shown struct {
	Interface, Direction, State, What string
	Attached, Pinned                  bool
	Process                           int
	Policy, Pacer                     string
}

func (p *pair) status(args ...string) (out []shown) {
	p.t.Helper()
	text, _ := p.do(0, append([]string{"status", "--json"}, args...)...)
	for line := range strings.Lines(text) {
		out = append(out, decode[shown](p.t, line))
	}
	return out
}

// nothing wants no trace of shaper in p's namespace.
func (p *pair) nothing() {
	p.t.Helper()
	eventually(p.t, func() error {
		if left := p.status(); len(left) > 0 {
			return fmt.Errorf("status says %+v", left)
		}
		files, err := filepath.Glob(fmt.Sprintf("/run/shaper/%d-*", p.near.Cookie()))
		if err == nil && len(files) > 0 {
			err = fmt.Errorf("left are %v", files)
		}
		return err
	})
}

// closed drops every IP packet.
var closed = []string{"--meter", never, "--green", "drop"}

// passesNone wants UDP packets that leave by v0 to be dropped, or not.
func (p *pair) passesNone(want bool) {
	p.t.Helper()
	egress := method{"", "egress"}
	_, at := p.addresses(egress, false)
	in := listen(p.t, p.far, at)
	send(p.t, sender(p.t, p.near, at, 0, 0), 3, 100)
	if n := len(in.take()); (n == 0) != want {
		p.t.Errorf("%d of 3 packets arrived: dropped should be %v", n, want)
	}
	in.conn.Close()
}
