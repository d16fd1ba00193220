package pipeline

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
)

// beyondPackets are fields without an effect on the packets of a pipeline.
var beyondPackets = []string{
	"Policy.Meters", "Policy.Queues", "Policy.Links", "Policy.Envelopes", "Customers.Plans", // lists of names
	"TokenBucket.GCRA",                           // the name of a token bucket
	"Queue.TargetAtRate", "Queue.IntervalAtRate", // read when a rate changes
	"Customers.Nested",                   // allows customers
	"Match.Cgroups", "Customers.Cgroups", // of the kernel
	"Meter.Idle",        // of a full table
	"Early.Probability", // the setting is 2^-24 larger
	"Budget.Once",       // of packets that pass several pipelines; the TAP plane refuses it

	// of the agent of leases
	"Budget.Interval", "Budget.Rescue", "Budget.Weight", "Budget.Hosts",
	"Address.URL", "Address.PasswordFile", "Address.CAFile", "Address.CertFile", "Address.KeyFile",
}

// TestEachFieldAlone checks that each field of a policy changes verdicts, packets or counters in one of its
// places. The TAP plane and replays run pipelines, so they honor all fields. In some places a value has no
// effect on this traffic, such as a second color's action behind a meter with two colors.
func TestEachFieldAlone(t *testing.T) {
	t.Parallel()
	traffic := mixedTraffic()
	effects, settings := map[string]int{}, 0
	for _, b := range policytest.Bases() {
		without := outcome(t, b.New(), traffic)
		for _, s := range b.Settings() {
			if strings.HasSuffix(s.Field, ".Name") || slices.Contains(beyondPackets, s.Field) {
				continue
			}
			if settings++; reflect.DeepEqual(outcome(t, b.With(s), traffic), without) {
				effects[s.Field] += 0
			} else {
				effects[s.Field]++
			}
		}
	}
	for field, n := range effects {
		if n == 0 {
			t.Errorf("%s: no effect", field)
		}
	}
	t.Logf("%d settings of %d fields", settings, len(effects))
}

// result is the outcome of traffic.
type result struct {
	verdicts []dataplane.Verdict // of Process and Settle
	headers  []byte              // of all packets behind the pipeline
	marks    []uint32
	stats    []dataplane.ClassStats
	up       *result // of the other direction; nil: the plan is the same
}

// outcome runs traffic through a policy, in both directions if they differ.
func outcome(t *testing.T, policy *dataplane.Policy, traffic []dataplane.Packet) result {
	t.Helper()
	l := newPipeline(t, policy)
	out := outcomeOf(l, traffic)
	if l.Plan().Up != nil {
		out.up = new(outcomeOf(FromPlan(l.Plan().For(dataplane.Ingress)), traffic))
	}
	return out
}

func outcomeOf(l *Pipeline, traffic []dataplane.Packet) (out result) {
	settle := func(now int64) {
		for v := (dataplane.Verdict{}); l.Settle(now, &v); {
			out.verdicts = append(out.verdicts, v)
		}
	}
	var data [1600]byte
	for _, p := range traffic {
		p.Data = data[:copy(data[:], p.Data)]
		var v dataplane.Verdict
		l.Process(&p, &v)
		out.verdicts = append(out.verdicts, v)
		out.headers = append(out.headers, p.Data[:min(len(p.Data), 64)]...)
		out.marks = append(out.marks, p.Mark)
		settle(p.Time)
	}
	settle(math.MaxInt64)
	out.stats = l.Stats()
	return out
}

// mixedTraffic returns packets with few values of each field: those that settings use, and others. It has
// bursts and pauses, and lasts some seconds.
func mixedTraffic() (traffic []dataplane.Packet) {
	r := rand.New(rand.NewPCG(1, 2))
	of := func(values ...uint16) uint16 { return values[r.IntN(len(values))] }
	address := func(list ...string) netip.Addr { return netip.MustParseAddr(list[r.IntN(len(list))]) }
	v4 := []string{
		"192.0.2.1", "192.0.2.1", "192.0.2.77", "192.0.2.77", "198.51.100.1", "10.0.0.1", "10.0.0.2",
		"10.9.0.1",
	}
	v6 := []string{"2001:db8:7::1", "2001:db8::1", "2001:db8:7:8::9"}
	gaps := []time.Duration{
		20 * time.Microsecond, time.Millisecond, 6 * time.Millisecond, time.Millisecond,
	}
	now := int64(1370 * time.Millisecond) // no bound of a window
	for i := range 1800 {
		phase := i / 300 % len(gaps)
		size := 8 + r.IntN(1400)*(1+r.IntN(5))
		src := address(v4...)
		if phase == 3 && i%8 != 0 { // large packets of one key
			size, src = 8000, netip.MustParseAddr(v4[0])
		}
		payload := frametest.PadTo(frametest.Ports(of(1, 6, 30, 999), of(1, 6, 30, 999)), size)
		proto := byte(of(17, 17, 17, 17, 17, 17, 17, 6, 6, 1, 16, 18))
		tos := byte(of(0, 1, 6, 10, 12, 14, 46)<<2 | of(0, 1, 2, 3))
		if size == 8000 {
			proto, tos = frametest.ProtoUDP, 46<<2|1
		}
		ethertype, packet := uint16(frametest.EtherIPv4),
			frametest.V4{Tos: tos, Proto: proto, Src: src, Dst: address(v4...)}.Packet(payload)
		switch r.IntN(16) {
		case 0, 1, 4, 5:
			ethertype, packet = frametest.EtherIPv6, frametest.V6{
				Class: tos, Next: proto, Src: address(v6...), Dst: address(v6...),
			}.Packet(payload)
		case 2:
			ethertype, packet = 0x0806, make([]byte, 28)
		case 3:
			packet = packet[:1]
		}
		if r.IntN(6) == 0 {
			ethertype, packet = frametest.EtherMPLS,
				frametest.Concat(frametest.MplsLabel(9, uint32(r.IntN(8)), 1), packet)
		}
		for range r.IntN(3) {
			ethertype, packet = frametest.EtherVLAN,
				frametest.Concat(frametest.Tag(of(0, 1, 6), of(0, 1), of(1, 5, 6, 7, 8), ethertype), packet)
		}
		data := frametest.Concat(frametest.Ethernet(ethertype), packet)
		traffic = append(traffic, dataplane.Packet{
			Data: data, WireLen: len(data), Link: dataplane.LinkEthernet, Time: now, ID: int64(i),
			Mark: uint32(of(0, 0, 1, 6)),
		})
		if now += int64(gaps[phase]); i%300 == 299 {
			now += int64(time.Second)
		}
	}
	return traffic
}
