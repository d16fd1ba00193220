package livetest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// treePolicy has links below a link. The link above c is to be filled in.
const treePolicy = `
classes:
  - {name: voice, match: {dscp: ef}, green: {queue: voice}}
  - {name: web, match: {dscp: af11}, green: {queue: web}}
  - {name: mail, match: {dscp: af12}, green: {queue: mail}}
  - {name: rest, green: {queue: rest}}
links:
  site: {rate: 400kbit}
  a: {link: site, rate: 200kbit, guarantee: 50kbit}
  b: {link: site, weight: 3}
  c: {link: %s}
queues:
  voice: {link: a, priority: 0, rate: 20kbit, limit: 64KiB}
  web: {link: a, priority: 1, guarantee: 10kbit, limit: 64KiB}
  mail: {link: b, limit: 64KiB}
  rest: {link: c, limit: 64KiB}
`

// treeClass is an HTB class as tc shows it.
type treeClass struct{ id, parent, rate, ceil string }

// treeClasses returns the HTB classes of v0.
func (p *pair) treeClasses() (out []treeClass) {
	p.t.Helper()
	for _, m := range regexp.MustCompile(`class htb (\S+) (?:root|parent (\S+)) .*?rate (\S+) ceil (\S+) `).
		FindAllStringSubmatch(p.near.Run("tc", "class", "show", "dev", "v0"), -1) {
		out = append(out, treeClass{m[1], m[2], m[3], m[4]})
	}
	return out
}

// paths returns the rate and ceiling of each class with those of the classes above it, sorted.
func paths(list []treeClass) (out []string) {
	above := map[string]treeClass{}
	for _, c := range list {
		above[c.id] = c
	}
	for _, c := range list {
		path := ""
		for ok := true; ok; c, ok = above[c.parent] {
			path = fmt.Sprintf("/%s-%s", c.rate, c.ceil) + path
		}
		out = append(out, strings.ReplaceAll(path, "8796Gbit", "max"))
	}
	slices.Sort(out)
	return out
}

func (p *pair) wantPaths(when string, want ...string) {
	p.t.Helper()
	slices.Sort(want)
	if got := paths(p.treeClasses()); !slices.Equal(got, want) {
		p.t.Errorf("%s: got classes\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestLiveLinkTree runs a tree of links. It changes the rate of a link and of a queue, moves a link, has
// another program remove one, and checks the classes of HTB, that no packet is lost by a change, and that
// everything is as before at the end.
func TestLiveLinkTree(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	_, at := p.addresses(placement{"tcx", "egress"}, false)
	before, qdiscs := p.deviceState(), p.qdiscState()
	path := writePolicy(t, fmt.Sprintf(treePolicy, "b"))
	r := p.runShaper("--policy", path, "--repair")
	r.out.awaitMatch(t, `queues share the rates unused by links below a link, regardless of the weights`)
	const site = "/400Kbit-400Kbit/8bit-450Kbit"
	const half, borrows = "/131248bit-max", "/8bit-max"
	// classes returns the paths of all classes, with rates of links a, b and c, and of queues mail and voice.
	classes := func(a, b, c, mail, voice string) []string {
		return []string{
			"/400Kbit-400Kbit", site, site + a, site + a + "/10Kbit-max", site + a + voice,
			site + b, site + c, site + b + mail, site + c + borrows,
		}
	}
	// a gets 50 kbit/s and a quarter of the rest, b the others; mail half of that beside link c.
	first := classes("/137496bit-200Kbit", "/262496bit-max", "/262496bit-max"+half, half, "/8bit-20Kbit")
	p.wantPaths("at first", first...)

	const each = 20
	for _, tos := range []int{46 << 2, 10 << 2, 12 << 2, 0} {
		sendUDP(t, newSender(t, p.near, at, tos, 0), each, 1000)
	}
	p.wantExit(0, "set", "v0", "link", "a", "rate=60kbit")
	changed := func(voice string) []string {
		return classes("/60Kbit-60Kbit", "/340Kbit-max", "/340Kbit-max/170Kbit-max", "/170Kbit-max", voice)
	}
	p.wantPaths("after a change of link a", changed("/8bit-20Kbit")...)
	p.wantExit(0, "set", "v0", "queue", "voice", "rate=30kbit")
	p.wantPaths("after a change of queue voice", changed("/8bit-30Kbit")...)
	for _, q := range p.stats().Queues {
		if q.Dropped != 0 {
			t.Errorf("after changes: queue %+v dropped packets", q)
		}
	}
	for _, command := range []string{"link a reset", "queue voice reset"} {
		p.wantExit(0, append([]string{"set", "v0"}, strings.Fields(command)...)...)
	}
	p.wantPaths("after the changes ended", first...)

	p.near.Run("tc", "class", "del", "dev", "v0", "classid", p.voiceClass())
	r.err.awaitMatch(t, `not shaping: HTB classes are missing: those of queue voice`)
	r.err.awaitMatch(t, `(?m)^shaper: v0 egress: shaping again$`)
	p.wantPaths("after a repair", first...)

	rewriteFile(t, path, fmt.Sprintf(treePolicy, "site"))
	p.wantExit(0, "reload")
	// 350 kbit/s by weights 1, 3 and 1
	p.wantPaths("after link c moved",
		classes("/120Kbit-200Kbit", "/210Kbit-max", "/70Kbit-max", borrows, "/8bit-20Kbit")...)
	rewriteFile(t, path, "links: {site: {rate: 400kbit}}\nqueues: {all: {link: site, limit: 64KiB}}\n"+
		"classes: [{name: all, green: {queue: all}}]\n")
	p.wantExit(0, "reload")
	p.wantPaths("without a tree", "/400Kbit-400Kbit", site, site+borrows)
	rewriteFile(t, path, fmt.Sprintf(treePolicy, "b"))
	p.wantExit(0, "reload")
	p.wantPaths("after the tree is back", first...)
	r.killAndWait()
	p.awaitClean(before, qdiscs)
}

// voiceClass returns the class of the queue with a rate of 20 kbit/s.
func (p *pair) voiceClass() string {
	p.t.Helper()
	list := p.treeClasses()
	i := slices.IndexFunc(list, func(c treeClass) bool { return c.ceil == "20Kbit" })
	if i < 0 {
		p.t.Fatalf("no class of 20 kbit/s: %+v", list)
	}
	return list[i].id
}
