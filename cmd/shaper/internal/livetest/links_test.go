package livetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// linksShown is a line of stats --links --json.
type linksShown struct {
	Links []struct {
		Link          string
		Path          string  `json:"link_path"`
		Guaranteed    float64 `json:"guaranteed_bit_s"`
		Reach         float64 `json:"reach_bit_s"`
		Sent, Backlog struct{ Packets int64 }
		Held          *struct{ Part float64 }
	}
}

const linksPolicy = `
links:
  site: {rate: 80kbit}
  ap: {link: site, rate: 40kbit, guarantee: 8kbit}
queues:
  a: {link: ap, limit: 64KiB}
  b: {link: site, limit: 64KiB}
classes:
  - {name: marked, match: {dscp: ef}, green: {queue: a}}
  - {name: sent, match: {dst: 192.0.2.1}, green: {queue: a}}
  - {name: rest, green: {queue: b}}
`

// wantLinks checks that link ap has sent or still has all packets of queue a, and other numbers of links.
func (p *pair) wantLinks(r *process, iface string, held bool) {
	p.t.Helper()
	eventually(p.t, func() error {
		classes := p.stats(iface).Classes
		n := classes[0].Packets + classes[1].Packets
		if n == 0 {
			return errors.New("no packet has arrived")
		}
		out, _ := p.wantExit(0, "stats", iface, "--links", "--json")
		list := decodeJSON[linksShown](p.t, out).Links
		if len(list) != 2 {
			return fmt.Errorf("got %s, want two links", out)
		}
		site, ap := list[0], list[1]
		if got := ap.Sent.Packets + ap.Backlog.Packets; ap.Path != "site/ap" || ap.Link != "site" || got != n {
			return fmt.Errorf("got %+v, %d packets; want site/ap with %d", ap, got, n)
		}
		if got := site.Sent.Packets + site.Backlog.Packets; site.Path != "site" || got < n {
			return fmt.Errorf("got %+v, %d packets; want site with at least %d", site, got, n)
		}
		rates := []float64{site.Guaranteed, site.Reach, ap.Guaranteed, ap.Reach}
		if !slices.Equal(rates, []float64{80_000, 80_000, 40_000, 40_000}) {
			return fmt.Errorf("got %s, want rates of 80 and 40 kbit/s", out)
		}
		if (site.Held != nil) != held || (ap.Held != nil) != held {
			return fmt.Errorf("got %s; time for which links held packets: %v", out, held)
		}
		return nil
	})
	text, _ := p.wantExit(0, "stats", iface, "--links")
	if !strings.Contains(text, "\n site ") || !strings.Contains(text, "\n   ap ") {
		p.t.Errorf("got %s, want ap below site", text)
	}
	if text, _ := p.wantExit(0, "status", iface); !strings.Contains(text, "  links    site (1 link, 2 queues)\n") {
		p.t.Errorf("got %s, want the tree", text)
	}
	labels := fmt.Sprintf(`{direction="egress",interface=%q,link="ap",parent="site"}`, iface)
	if _, there := p.scrapeMetrics(r)["shaper_link_sent_packets_total"+labels]; !there {
		p.t.Errorf("no metric with labels %s", labels)
	}
}

// TestLiveLinks checks stats --links, status and the metrics of links in the kernel.
func TestLiveLinks(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	_, at := p.addresses(placement{"tcx", "egress"}, false)
	r := p.runShaper("--policy", writePolicy(t, linksPolicy), "--metrics", "127.0.0.1:0")
	sendUDP(t, newSender(t, p.near, at, 46<<2, 0), 10, 1000)
	p.wantLinks(r, "v0", false)
	p.wantExit(0, "reload", "v0")
	p.wantLinks(r, "v0", false)
	p.wantError(2, `--links cannot be combined with --watch`, "stats", "v0", "--links", "--watch")
	p.wantError(2, `--customers cannot be combined with --watch or --links`,
		"stats", "v0", "--links", "--customers")
	r.stopBySIGTERM()
	r = p.runShaper("--rate", "1mbit", "--dry-run")
	p.wantError(1, `v0 egress: no packet is queued on a link: the policy has no links, or it is a dry run`,
		"stats", "v0", "--links")
	r.stopBySIGTERM()
}

// TestLiveTapLinks is TestLiveLinks for shaper tap.
func TestLiveTapLinks(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--policy", writePolicy(t, linksPolicy), "--direction", "egress",
		"--metrics", "127.0.0.1:0")
	for range 10 {
		p.near.Inject("t0", packetBetween("203.0.113.1", "192.0.2.1"))
	}
	p.wantLinks(r, "t0", true)
	p.wantExit(0, "reload", "t0")
	p.wantLinks(r, "t0", true)
}
