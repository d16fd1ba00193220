package kernel_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/nettest"
)

// drops is what shaper stats says of dropped packets.
type drops struct {
	Dropped count
	Classes []struct {
		Name    string
		Dropped count
		Green   struct{ Dropped map[string]count }
	}
	Queues []struct {
		Name, Class    string
		Bytes, Dropped int64
	}
}

func (p *pair) dropped() drops {
	p.t.Helper()
	stdout, _ := p.do(0, "stats", "--json")
	return decode[drops](p.t, stdout)
}

// TestLiveQueueDropped holds that what HTB drops of a link's queues is counted
// as dropped: by class and color where they are known, and in sum.
func TestLiveQueueDropped(t *testing.T) {
	hereOnly(t)
	const policy = `
classes:
  - {name: a, match: {dscp: af11}, green: {queue: a}}
  - {name: b, match: {dscp: af12}, green: {queue: bc}}
  - {name: c, match: {dscp: af13}, green: {queue: %s}}
  - name: d
    match: {dscp: [af21, af22]}
    meter: {type: trtcm, cir: 1gbit, cbs: 1MB, pir: 1gbit, pbs: 1MB, color: aware}
    green: {queue: d}
    yellow: {queue: d}
links: {wan: {rate: 2mbit}}
queues:
  a: {link: wan, limit: 10kB}
  bc: {link: wan, limit: 10kB}
  d: {link: wan, limit: 10kB}
`
	p := newQueuePair(t)
	path := file(t, fmt.Sprintf(policy, "bc"))
	r := p.run("--metrics", ":0", "--policy", path)
	_, at := p.addresses(method{"tcx", "egress"}, false)
	in := listen(t, p.far, at)
	count := func(frames []nettest.Frame) map[int]int64 {
		out := map[int]int64{}
		for _, f := range frames {
			if len(f.Data) > 900 {
				out[tosOf(f.Data[14:])]++
			}
		}
		return out
	}
	sniffer := p.far.Sniff("v0")
	const each = 60
	for _, tos := range []int{10 << 2, 12 << 2, 14 << 2, 18 << 2, 20 << 2} {
		send(t, sender(t, p.near, at, tos, 0), each, 1000)
	}
	eventually(t, func() error {
		for _, q := range p.dropped().Queues {
			if q.Bytes > 0 {
				return fmt.Errorf("queue %s holds %d bytes", q.Name, q.Bytes)
			}
		}
		return nil
	})
	in.take()
	arrived := count(sniffer.Stop())
	lost := func(tos ...int) (n int64) {
		for _, tos := range tos {
			n += each - arrived[tos<<2]
		}
		return n
	}
	if lost(10) == 0 || lost(12, 14) == 0 || lost(18, 20) == 0 {
		t.Fatalf("nothing was dropped: %v arrived", arrived)
	}
	s := p.dropped()
	for i, want := range []struct {
		class, green int64
	}{{lost(10), lost(10)}, {0, 0}, {0, 0}, {lost(18, 20), 0}} {
		c := s.Classes[i]
		if c.Dropped.Packets != want.class || c.Green.Dropped["queue-full"].Packets != want.green {
			t.Errorf("class %s: dropped %+v, green %+v: want %+v", c.Name, c.Dropped, c.Green.Dropped, want)
		}
	}
	for i, want := range []struct {
		class   string
		dropped int64
	}{{"a", lost(10)}, {"", lost(12, 14)}, {"d", lost(18, 20)}} {
		if q := s.Queues[i]; q.Class != want.class || q.Dropped != want.dropped {
			t.Errorf("queue %+v: want %+v", q, want)
		}
	}
	all := lost(10, 12, 14, 18, 20)
	if s.Dropped.Packets != all {
		t.Errorf("dropped %+v of all: want %d packets", s.Dropped, all)
	}

	want := map[string]float64{
		`{class="a",color="green",`: float64(lost(10)), `{class="",color="",`: float64(lost(12, 14)), `{class="d",color="",`: float64(lost(18, 20)),
	}
	eventually(t, func() error {
		numbers := p.scrape(r)
		for labels, n := range want {
			name := "shaper_dropped_packets_total" + labels + `direction="egress",interface="v0",reason="queue-full"}`
			if got, ok := numbers[name]; !ok || got != n {
				return fmt.Errorf("%s is %v: want %v", name, got, n)
			}
		}
		return nil
	})

	rewrite(t, path, fmt.Sprintf(policy, "a"))
	p.do(0, "reload")
	s = p.dropped()
	if s.Queues[0].Class != "" || s.Classes[0].Dropped.Packets != 0 || s.Dropped.Packets != all {
		t.Errorf("queue a has a second class since: %+v: want %d dropped, of no class", s, all)
	}
	r.term()
	for _, text := range []string{
		fmt.Sprintf(`\n +%d +\n`, lost(18, 20)),
		fmt.Sprintf(`\n%d more packets were dropped in queues that several classes use\n`, lost(10, 12, 14)),
	} {
		if !regexp.MustCompile(text).MatchString(r.out.String()) {
			t.Errorf("the last table lacks %s: %s", text, &r.out)
		}
	}
}
