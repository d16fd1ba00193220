package kernel

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestLoads holds that programs load as they are attached, not handed anything,
// and with room to spare: older kernels look at several times as many
// instructions before they are content.
func TestLoads(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	policies := fixed()
	policies["many"] = manyClasses(r, 300)
	policies["all"] = everything(r)
	policies["queues"] = allInto(askingAll)
	const most = 1_000_000 // which the kernel takes
	for name, policy := range policies {
		for _, hook := range allEntries {
			for _, link := range []dataplane.LinkType{dataplane.LinkEthernet, dataplane.LinkRaw} {
				if hook == xdpEntry && usesMark(policy) || policy.Length.Accepts(link) != nil ||
					inVM && (hook != egressEntry || link == dataplane.LinkRaw || name != "frames" && name != "all" && name != "queues") {
					continue
				}
				begin := time.Now()
				h := newHooked(t, policy, hook, func(c *bpf.ShaperConstants) { c.Handed, c.Link = 0, uint8(link) })
				took := time.Since(begin)
				info, err := h.program.Info()
				if err != nil {
					t.Fatal(err)
				}
				n, _ := info.VerifiedInstructions()
				t.Logf("%s, hook %d, link %v: %d instructions were verified in %v", name, hook, link, n, took.Round(time.Millisecond))
				if n > most/5 && !inVM {
					t.Errorf("%s, hook %d, link %v: %d instructions were verified: want at most a fifth of %d", name, hook, link, n, most)
				}
			}
		}
	}
}

// TestLimits holds that what is at a limit, but not above, works.
func TestLimits(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy *dataplane.Policy
	}{
		{"classes and meters", classes(MaxClasses, maxStates/2/MaxClasses)},
		{"chain", oneClass(dataplane.Class{Meter: chained(MaxChain)})},
		{"bounds", hosts(maxBounds/2-1, false)},
		{"bounds of IPv6", hosts(maxBounds/2-1, true)},
		{"long", withLength(dataplane.LengthRule{Base: dataplane.L1, Overhead: 1 << 15, MPU: 1 << 15})},
		{"short", withLength(dataplane.LengthRule{Overhead: -1 << 15})},
	} {
		t.Run(test.name, func(t *testing.T) {
			var packets []dataplane.Packet
			for i := range 100 {
				b := ipv4(be16(ethernet(), 0x800), 0, 0, 17, 26+11*i, 0, from4, [4]byte{10, byte(i) & 1, byte(i), byte(i)})
				packets = append(packets, dataplane.Packet{Data: append(b, make([]byte, 26+11*i)...), Link: dataplane.LinkEthernet})
				b = ipv6(be16(ethernet(), 0x86dd), 0, 17, 8, from6, [16]byte{0x20, 1, 13: byte(i) & 1, 14: byte(i), 15: byte(i)})
				packets = append(packets, dataplane.Packet{Data: append(b, make([]byte, 8)...), Link: dataplane.LinkEthernet})
			}
			for _, plane := range planes {
				switch {
				case plane.name == "walk-1", inVM && plane.name != "walk-7":
				case plane.name != "walk-512" && plane.name != "walk-7" && len(metersOf(test.policy)) > 100: // to read them takes long
					plane.open(t, test.policy)
				default:
					follow(t, test.policy, plane.open(t, test.policy), packets)
				}
			}
		})
	}
}

// TestStack holds that the stack of each program fits older kernels, too, which
// round the frame of each function up to 32 bytes.
func TestStack(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for _, hook := range allEntries {
		policy := oneClass(dataplane.Class{Meter: keyedChain(), Red: &dataplane.Action{ECN: dataplane.CEOrDrop, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 1}, {Field: dataplane.PCP, Value: 1}}}})
		if hook != xdpEntry {
			policy.Classes[0].Yellow = &dataplane.Action{Queue: &dataplane.Queue{Config: askingAll}}
		}
		g, err := encodePolicy(policy, hook, "")
		if err != nil {
			t.Fatal(err)
		}
		spec, err := bpf.LoadShaper()
		if err != nil {
			t.Fatal(err)
		}
		g.constants.Link = uint8(dataplane.LinkEthernet)
		if err := spec.Variables[bpf.ShaperVarPolicy].Set(g.constants); err != nil {
			t.Fatal(err)
		}
		for name := range spec.Programs {
			if name != programs[hook] {
				delete(spec.Programs, name)
			}
		}
		c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		log := c.Programs[programs[hook]].VerifierLog
		_, list, _ := strings.Cut(log, "stack depth ")
		list, _, _ = strings.Cut(list, "\n")
		deepest, own := 0, 0
		for i, text := range strings.Split(list, "+") { // of the program, then of what it calls, which calls nothing
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				t.Fatalf("%v in %q", err, log)
			}
			if n = (n + 31) &^ 31; i == 0 {
				own = n
			} else {
				deepest = max(deepest, n)
			}
		}
		t.Logf("hook %d: %s, %d of 512 bytes", hook, list, own+deepest)
		if own+deepest > 512 {
			t.Errorf("hook %d: %d and %d bytes of stack: kernels before 6.9 take 512", hook, own, deepest)
		}
	}
}
