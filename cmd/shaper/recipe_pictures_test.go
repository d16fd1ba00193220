package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// stream is a part of the traffic of a picture. It sends datagrams of 1200 bytes (IP) at a constant rate.
type stream struct {
	name, more     string
	src, dst       string // IPv4
	mbit           float64
	begin, end     float64 // s
	flows          int     // 0: one
	tos, vlan, vni int
	port           int // destination; 0: 5001
	proto          byte
	limit          float64 // the line in its panel, Mbit/s; 0: none
}

// recipePicture is docs/recipes/NAME/result.svg.
type recipePicture struct {
	dir, policy, title string
	seconds            float64
	streams            []stream
	files              map[string]string // files of customers that scripts of the recipe add
	plain              string            // for a picture of delays: the policy to compare with
	flags              []string
}

const (
	pictureBins   = 120
	pictureLength = 1200 // bytes of IP
)

var recipePictures = []recipePicture{
	{
		dir: "line", policy: "line.yaml", title: "Delay of a call while a download sends 120 Mbit/s", seconds: 4,
		streams: []stream{
			{name: "call", src: "203.0.113.1", dst: "192.168.1.10", mbit: 0.5, end: 4},
			{name: "download", src: "203.0.113.2", dst: "192.168.1.11", mbit: 120, begin: 1, end: 3},
		},
		plain: "classes: [{name: all, green: {queue: modem}}]\n" +
			"queues: {modem: {rate: 100mbit, limit: 500ms, fair: false}}\n",
	},
	{
		dir: "devices", policy: "devices.yaml", title: "Two devices on a line of 95 Mbit/s", seconds: 4,
		streams: []stream{
			{name: "laptop", more: "8 flows", src: "203.0.113.1", dst: "192.168.1.10", mbit: 120, end: 4, flows: 8},
			{name: "phone", more: "1 flow", src: "203.0.113.2", dst: "192.168.1.11", mbit: 60, begin: 1, end: 3},
		},
	},
	{
		dir: "isp", policy: "isp.yaml", title: "Customers of an access point of 200 Mbit/s", seconds: 4,
		streams: []stream{
			{name: "alice", more: "plan home", src: "203.0.113.1", dst: "192.0.2.11", mbit: 40, end: 4, limit: 50},
			{name: "bob", more: "plan home, 100 Mbit/s", src: "203.0.113.1", dst: "192.0.2.12", mbit: 250, begin: 1, end: 3, limit: 100},
			{name: "no customer", src: "203.0.113.1", dst: "192.0.2.99", mbit: 30, begin: 1, end: 3, limit: 10},
		},
	},
	{
		dir: "handoff", policy: "handoff.yaml", title: "A customer sends more and more", seconds: 6,
		streams: []stream{
			{name: "voice", more: "EF, at most 2 Mbit/s", src: "192.0.2.1", dst: "203.0.113.1", mbit: 1, end: 6, tos: 46 << 2},
			{name: "rest", src: "192.0.2.1", dst: "203.0.113.2", mbit: 15, end: 6},
			{name: "rest", src: "192.0.2.1", dst: "203.0.113.2", mbit: 20, begin: 2, end: 6},
			{name: "rest", src: "192.0.2.1", dst: "203.0.113.2", mbit: 40, begin: 4, end: 6},
		},
	},
	{
		dir: "router", policy: "router.yaml", title: "An attack on a router", seconds: 4,
		streams: []stream{
			{name: "bgp", more: "of the peer, no limit", src: "192.0.2.2", dst: "192.0.2.1", mbit: 8, end: 4, proto: 6, port: 179},
			{name: "ssh", src: "192.0.2.9", dst: "192.0.2.1", mbit: 20, begin: 1, end: 3, proto: 6, port: 22, limit: 5},
			{name: "rest", more: "datagrams to the router", src: "192.0.2.9", dst: "192.0.2.1", mbit: 20, begin: 1, end: 3, limit: 1},
			{name: "forwarded", more: "no limit", src: "192.0.2.9", dst: "203.0.113.1", mbit: 20, begin: 1, end: 3},
		},
		flags: []string{"--direction", "ingress"},
	},
	{
		dir: "uplinks", policy: "uplinks.yaml", title: "Two uplinks with 100 Mbit/s together", seconds: 4,
		streams: []stream{
			{name: "eth0", src: "203.0.113.1", dst: "192.0.2.1", mbit: 80, end: 3},
			{name: "eth1", src: "203.0.113.1", dst: "198.51.100.1", mbit: 80, begin: 1, end: 4},
		},
	},
	{
		dir: "boost", policy: "boost.yaml", title: "20 Mbit/s with a boost to 100", seconds: 10,
		streams: []stream{{name: "a download", src: "203.0.113.1", dst: "192.0.2.1", mbit: 120, end: 10, limit: 20}},
	},
	{
		dir: "vlan", policy: "vlan.yaml", title: "The VLANs of a trunk", seconds: 3,
		streams: []stream{
			{name: "office", more: "VLAN 10, plan large", src: "203.0.113.1", dst: "192.0.2.1", mbit: 120, end: 3, vlan: 10, limit: 200},
			{name: "guests", more: "VLAN 20, plan small", src: "203.0.113.1", dst: "192.0.2.2", mbit: 60, end: 3, vlan: 20, limit: 20},
			{name: "another VLAN", more: "VLAN 40", src: "203.0.113.1", dst: "192.0.2.3", mbit: 30, begin: 1, end: 3, vlan: 40},
		},
	},
	{
		dir: "wireguard", policy: "peers.yaml", title: "Peers of WireGuard", seconds: 3,
		files: map[string]string{"peers.csv": "customer,address,plan\nalice,10.8.0.2,large\nbob,10.8.0.3,standard\n"},
		streams: []stream{
			{name: "alice", more: "plan large", src: "203.0.113.1", dst: "10.8.0.2", mbit: 60, end: 3, limit: 200},
			{name: "bob", more: "plan standard", src: "203.0.113.1", dst: "10.8.0.3", mbit: 60, end: 3, limit: 20},
		},
	},
	{
		dir: "dhcp", policy: "leases.yaml", title: "Devices with a lease, and one without", seconds: 3,
		files: map[string]string{"devices.csv": "customer,address,plan\nstaff,10.0.0.20,staff\nguest,10.0.0.21,guest\n"},
		streams: []stream{
			{name: "laptop", more: "plan staff", src: "203.0.113.1", dst: "10.0.0.20", mbit: 60, end: 3, limit: 100},
			{name: "phone", more: "plan guest", src: "203.0.113.1", dst: "10.0.0.21", mbit: 60, end: 3, limit: 10},
			{name: "no lease", src: "203.0.113.1", dst: "10.0.0.99", mbit: 60, begin: 1, end: 3, limit: 1},
		},
	},
	{
		dir: "radius", policy: "sessions.yaml", title: "Sessions of subscribers", seconds: 3,
		files: map[string]string{"sessions.csv": "customer,address,plan\nbob,100.64.0.10,standard\nalice,100.64.0.11,large\n"},
		streams: []stream{
			{name: "bob", more: "plan standard", src: "203.0.113.1", dst: "100.64.0.10", mbit: 60, end: 3, limit: 20},
			{name: "alice", more: "plan large", src: "203.0.113.1", dst: "100.64.0.11", mbit: 60, end: 3, limit: 200},
			{name: "no session", src: "203.0.113.1", dst: "100.64.0.99", mbit: 60, begin: 1, end: 3, limit: 1},
		},
	},
	{
		dir: "containers", policy: "containers.yaml", title: "The download of a container", seconds: 3,
		streams: []stream{
			{name: "web", more: "plan standard", src: "203.0.113.1", dst: "172.17.0.2", mbit: 60, end: 3, limit: 20},
		},
	},
	{
		dir: "tunnels", policy: "overlay.yaml", title: "Networks of an overlay", seconds: 3,
		streams: []stream{
			{name: "web", more: "VNI 7, plan large", src: "192.0.2.1", dst: "192.0.2.2", mbit: 60, end: 3, vni: 7, limit: 200},
			{name: "test", more: "VNI 8, plan small", src: "192.0.2.1", dst: "192.0.2.2", mbit: 60, end: 3, vni: 8, limit: 20},
		},
	},
}

// write writes the traffic as a capture, and returns the stream and the time of each packet.
func (p recipePicture) write(t *testing.T) (path string, of []int, at []float64) {
	t.Helper()
	type packet struct {
		at   float64
		of   int
		port int
	}
	var list []packet
	for i, s := range p.streams {
		flows := max(s.flows, 1)
		gap := pictureLength * 8 / (s.mbit * 1e6)
		random := rand.New(rand.NewPCG(uint64(i), 0)) // in lockstep, one stream could lose all packets
		for n, at := 0, s.begin; at < s.end; n++ {
			list = append(list, packet{at, i, 20000 + 100*i + n%flows})
			at += gap * (0.9 + 0.2*random.Float64())
		}
	}
	slices.SortStableFunc(list, func(a, b packet) int { return cmp.Compare(a.at, b.at) })
	le, be := binary.LittleEndian, binary.BigEndian
	data := le.AppendUint32(nil, 0xa1b23c4d)
	for _, v := range []uint32{2 | 4<<16, 0, 0, 65535, 1} { // Ethernet
		data = le.AppendUint32(data, v)
	}
	for _, k := range list {
		s := p.streams[k.of]
		frame := []byte("\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01")
		if s.vlan > 0 {
			frame = be.AppendUint32(frame, 0x8100_0000|uint32(s.vlan))
		}
		headers := len(frame) + 2
		port := uint16(cmp.Or(s.port, 5001))
		if s.vni > 0 {
			port = 4789
		}
		frame = append(frame, 8, 0, 0x45, byte(s.tos), pictureLength>>8, pictureLength&0xff)
		frame = append(frame, 0, 0, 0, 0, 64, cmp.Or(s.proto, 17), 0, 0)
		frame = append(frame, netip.MustParseAddr(s.src).AsSlice()...)
		frame = append(frame, netip.MustParseAddr(s.dst).AsSlice()...)
		frame = be.AppendUint16(be.AppendUint16(frame, uint16(k.port)), port)
		if s.proto == 6 {
			frame = append(frame, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 16, 0, 0, 0, 0, 0)
		} else {
			frame = append(frame, (pictureLength-20)>>8, (pictureLength-20)&0xff, 0, 0)
		}
		if s.vni > 0 {
			frame = be.AppendUint32(append(frame, 8, 0, 0, 0), uint32(s.vni)<<8)
		}
		ns := int64(k.at * 1e9)
		for _, v := range []uint32{
			1_767_225_600 + uint32(ns/1e9), uint32(ns % 1e9),
			uint32(len(frame)), uint32(headers + pictureLength),
		} {
			data = le.AppendUint32(data, v)
		}
		data = append(data, frame...)
		of, at = append(of, k.of), append(at, float64(ns)/1e9)
	}
	path = filepath.Join(t.TempDir(), p.dir+".pcap")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, of, at
}

// draw replays the traffic and draws the picture.
func (p recipePicture) draw(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("../../docs/recipes", p.dir))); err != nil {
		t.Fatal(err)
	}
	for name, text := range p.files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	capture, of, at := p.write(t)
	out := report.Traffic{Title: p.title, Since: "replay of constant streams, in virtual time", Seconds: p.seconds}
	policy := filepath.Join(dir, p.policy)
	if p.plain == "" {
		out.Flows = p.rates(t, capture, policy, of, at)
	} else {
		out.Delays = true
		plain := filepath.Join(dir, "plain.yaml")
		if err := os.WriteFile(plain, []byte(p.plain), 0o600); err != nil {
			t.Fatal(err)
		}
		out.Flows = []report.Flow{
			p.delays(t, "before", "the modem's queue of 500 ms", capture, plain, of, at),
			p.delays(t, "with the recipe", p.policy, capture, policy, of, at),
		}
	}
	var b bytes.Buffer
	if err := report.WriteTraffic(&b, out); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// rates returns the offered and passed rates of each stream. Streams of the same name share a panel. If
// packets get different marks, each mark has a panel, too.
func (p recipePicture) rates(t *testing.T, capture, policy string, of []int, at []float64) []report.Flow {
	t.Helper()
	index, flows := map[string]int{}, []report.Flow(nil)
	panel := func(s stream, name, more string) *report.Flow {
		if _, ok := index[name]; !ok {
			index[name] = len(flows)
			flows = append(flows, report.Flow{
				Name: name, More: more, Limit: s.limit * 1e6,
				Offered: make([]float64, pictureBins), Passed: make([]float64, pictureBins),
			})
		}
		return &flows[index[name]]
	}
	dropped := map[string]int{}
	width := p.seconds / pictureBins
	add := func(bins []float64, at float64) {
		if i := int(at / width); i < len(bins) {
			bins[i] += pictureLength * 8 / width
		}
	}
	start := int64(0)
	for i, row := range decisionsOf(t, capture, append([]string{"--policy", policy}, p.flags...)...) {
		if i == 0 {
			start = row.TimeNS - int64(at[0]*1e9)
		}
		s := p.streams[of[i]]
		all := panel(s, s.name, s.more)
		add(all.Offered, at[i])
		left := at[i]
		switch {
		case row.Action == "drop":
			dropped[s.name]++
			continue
		case row.DepartureNS != nil:
			left = float64(*row.DepartureNS-start) / 1e9
		}
		add(all.Passed, left)
		if p.dir == "handoff" && s.tos == 0 {
			mark := panel(s, map[bool]string{true: "AF11", false: "AF12"}[row.Color == "green"], "of the rest")
			add(mark.Passed, left)
			add(mark.Offered, left)
		}
	}
	for name, i := range index {
		if n := dropped[name]; n > 0 {
			flows[i].Result = say.Grouped(int64(n)) + " packets dropped"
		}
	}
	return flows
}

// delays returns the longest delay of the first stream over time.
func (p recipePicture) delays(
	t *testing.T, name, more, capture, policy string, of []int, at []float64,
) report.Flow {
	t.Helper()
	f := report.Flow{Name: name, More: more, Passed: make([]float64, pictureBins)}
	lost := 0
	for i, row := range decisionsOf(t, capture, "--policy", policy) {
		bin := int(at[i] / p.seconds * pictureBins)
		switch {
		case of[i] != 0 || bin >= pictureBins:
		case row.DepartureNS == nil:
			lost++
		default:
			f.Passed[bin] = max(f.Passed[bin], float64(*row.DepartureNS-row.TimeNS)/1e9)
		}
	}
	f.Result = fmt.Sprintf("at most %.1f ms, %d packets of the call lost", slices.Max(f.Passed)*1e3, lost)
	return f
}

// TestRecipePictures compares the pictures of recipes with those that a replay of their policies draws, and
// checks that the pages show them. With SHAPER_PICTURES set it writes them.
func TestRecipePictures(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/RECIPES.md")
	if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob("../../docs/recipes/*/result.svg")
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[string]bool{"../../docs/recipes/burst/result.svg": true}
	for _, p := range recipePictures {
		path := filepath.Join("../../docs/recipes", p.dir, "result.svg")
		drawn[path] = true
		t.Run(p.dir, func(t *testing.T) {
			t.Parallel()
			comparePicture(t, path, p.draw(t))
		})
	}
	for _, path := range left {
		if !drawn[path] {
			t.Errorf("nothing draws %s", path)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(drawn)) {
		if name := strings.TrimPrefix(path, "../../docs/"); !strings.Contains(string(page), "]("+name+")") {
			t.Errorf("docs/RECIPES.md does not show %s", name)
		}
	}
}

// comparePicture compares a picture with a file, or writes it.
func comparePicture(t *testing.T, path string, got []byte) {
	t.Helper()
	if len(got) > 20_000 {
		t.Errorf("%s has %d bytes: want at most 20,000", path, len(got))
	}
	if os.Getenv("SHAPER_PICTURES") != "" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s differs from the drawn picture (%v): make pictures", path, err)
	}
}

// TestRecipeBurstPicture floods a policer of 20 Mbit/s and 150 kB in a replay, as the recipe does, and draws
// what advise says about the packets behind it: none is lost from the policer's burst on.
func TestRecipeBurstPicture(t *testing.T) {
	t.Parallel()
	flood := recipePicture{dir: "burst", streams: []stream{
		{src: "203.0.113.1", dst: "192.0.2.1", mbit: 60, end: 1, proto: 17},
	}}
	capture, _, _ := flood.write(t)
	behind := filepath.Join(t.TempDir(), "behind.pcap")
	const policer = 150_000
	var stdout, stderr bytes.Buffer
	for _, args := range [][]string{
		{"replay", capture, "--meter", fmt.Sprintf("token-bucket rate=20mbit burst=%d", policer), "-o", behind},
		{"advise", behind, "--rate", "20mbit", "--json"},
	} {
		stdout.Reset()
		if code := run(args, cli.Streams{Out: &stdout, Err: &stderr}); code != cli.ExitDone {
			t.Fatalf("%v: exit %d: %s", args, code, &stderr)
		}
	}
	type count struct{ Packets int64 }
	var advice struct {
		Burst    int64 `json:"loss_free_burst"`
		Offered  count
		Frontier []struct {
			Burst   int64
			Dropped count
		}
	}
	if err := json.Unmarshal(stdout.Bytes(), &advice); err != nil {
		t.Fatal(err)
	}
	if advice.Burst > policer || advice.Burst <= policer-pictureLength {
		t.Errorf("found a burst of %d: want %d, or less than a packet below", advice.Burst, policer)
	}
	frontier := report.Frontier{Input: "packets behind the policer", Rate: "20mbit"}
	for _, p := range advice.Frontier {
		frontier.Bursts = append(frontier.Bursts, p.Burst)
		frontier.Loss = append(frontier.Loss, float64(p.Dropped.Packets)/float64(advice.Offered.Packets))
	}
	var b bytes.Buffer
	if err := report.WriteFrontier(&b, frontier); err != nil {
		t.Fatal(err)
	}
	comparePicture(t, "../../docs/recipes/burst/result.svg", b.Bytes())
}
