package walk

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestLoads checks that programs load as Attach loads them, and that the kernel verifies at most
// a tenth of the instructions that it allows: older kernels verify several times as many.
func TestLoads(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	policies := fixedPolicies()
	policies["many"] = manyClasses(r, 300)
	policies["all"] = fullPolicy(r)
	policies["queues"] = queueAll(fullQueue)
	policies["customers"] = withCustomers(fullPolicy(r), dataplane.BySource, false)
	policies["paced customers"] = withCustomers(fullPolicy(r), dataplane.ByDestination, true)
	policies["customers by VLAN"] = withCustomers(queueAll(fullQueue), dataplane.ByTwoVLANs, true)
	for name, policy := range policies {
		if name == "closed" {
			continue // the same program as "matches"
		}
		for _, hook := range allEntries {
			for _, link := range []dataplane.LinkType{dataplane.LinkEthernet, dataplane.LinkRaw} {
				raw := name == "precolors" || name == "many" || name == "queues"
				if link == dataplane.LinkRaw && !raw {
					continue // TestOneTruth checks these
				}
				if hook == image.XdpEntry && (usesMark(policy) || policy.Customers != nil) ||
					policy.Length.Accepts(link) != nil ||
					kerneltest.InVM &&
						(hook != image.EgressEntry || link == dataplane.LinkRaw || name != "frames" &&
							name != "all" && name != "queues" && policy.Customers == nil) {
					continue
				}
				h := newHooked(t, policy, hook,
					func(c *bpf.ShaperConstants) { c.Handed, c.Link = 0, uint8(link) })
				n := h.checkVerified(t, name)
				t.Logf("%s, hook %d, link %v: verified %d instructions", name, hook, link, n)
			}
		}
	}
}

// withCustomers adds a class of customers before those of a policy. Its chain goes on with that
// of the policy's first class.
func withCustomers(policy *dataplane.Policy, key dataplane.CustomerKey, paced bool) *dataplane.Policy {
	first := policy.Classes[0]
	first.Name, first.Match = "customers", dataplane.Match{Customer: true}
	then := *first.Meter
	for last := &then; last.Then != nil; last = last.Then { // the chain may be full
		if last.Then.Then == nil {
			last.Then = nil
			break
		}
		next := *last.Then
		last.Then = &next
	}
	first.Meter = &dataplane.Meter{Name: "customers", Then: &then}
	policy.Classes = append([]dataplane.Class{first}, policy.Classes...)
	plans := []*dataplane.ServicePlan{
		{Name: "metered", Params: meter.TRTCM{CIR: kerneltest.EightMbit, CBS: 1e6, PIR: kerneltest.EightMbit, PBS: 1e6}, Yellow: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 1}}}},
		{Name: "window", Params: meter.SlidingCounter{Limit: 1e6, Window: time.Second}},
	}
	if paced {
		plans = append(plans, &dataplane.ServicePlan{Name: "paced", Queue: &queue.Config{
			Rate: kerneltest.EightMbit, Time: time.Second, ECN: true, CoDel: fullQueue.CoDel,
		}})
	}
	policy.Customers = &dataplane.Customers{Key: key, Plans: plans}
	for i, plan := range plans {
		c := dataplane.Customer{Name: plan.Name, Plan: plan}
		if key == dataplane.ByTwoVLANs {
			c.IDs = []uint64{uint64(i)<<12 | 7}
		} else {
			c.Prefixes = []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, byte(i)}), 16),
			}
		}
		policy.Customers.List = append(policy.Customers.List, c)
	}
	return policy
}

// checkVerified returns the number of verified instructions of a program. It fails the test if the
// number is above a tenth of the kernel's limit (BPF_COMPLEXITY_LIMIT_INSNS).
func (h *hooked) checkVerified(t *testing.T, name string) uint32 {
	t.Helper()
	const most = 1_000_000
	info, err := h.program.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, _ := info.VerifiedInstructions()
	if n > most/10 && !kerneltest.InVM {
		t.Errorf("%s, hook %d, link %d: verified %d instructions, want at most a tenth of %d", name, h.hook,
			h.image.Constants.Link, n, most)
	}
	return n
}

// TestLimits checks that policies exactly at a limit load and work.
func TestLimits(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy *dataplane.Policy
	}{
		{"classes and meters", manyChains(image.MaxClasses, image.MaxStates/2/image.MaxClasses)},
		{"chain", oneClass(dataplane.Class{Meter: meterChain(image.MaxChain)})},
		{"bounds", hostAddresses(image.MaxBounds/2-1, false)},
		{"bounds of IPv6", hostAddresses(image.MaxBounds/2-1, true)},
		{"long", withLength(dataplane.LengthRule{Base: dataplane.L1, Overhead: 1 << 15, MPU: 1 << 15})},
		{"short", withLength(dataplane.LengthRule{Overhead: -1 << 15})},
	} {
		t.Run(test.name, func(t *testing.T) {
			var packets []dataplane.Packet
			for i := range 100 {
				b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, 0, 17, 26+11*i, 0, from4,
					[4]byte{10, byte(i) & 1, byte(i), byte(i)})
				packets = append(packets,
					dataplane.Packet{Data: append(b, make([]byte, 26+11*i)...), Link: dataplane.LinkEthernet})
				b = ipv6(kerneltest.Be16(ethernet(), 0x86dd), 0, 17, 8, from6,
					[16]byte{0x20, 1, 13: byte(i) & 1, 14: byte(i), 15: byte(i)})
				packets = append(packets,
					dataplane.Packet{Data: append(b, make([]byte, 8)...), Link: dataplane.LinkEthernet})
			}
			for _, plane := range planes {
				switch {
				case kerneltest.InVM && plane.name != "walk":
				// reading their tokens takes long
				case plane.name != "walk" && len(metersOf(test.policy)) > 100:
					plane.open(t, test.policy)
				default:
					followPipeline(t, test.policy, plane.open(t, test.policy), packets)
				}
			}
		})
	}
}

// TestStack checks that each program's stack is within 512 bytes on older kernels too, which
// round each function's frame up to 32 bytes.
func TestStack(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	for _, hook := range allEntries {
		policy := oneClass(dataplane.Class{Meter: keyedChain(), Red: &dataplane.Action{
			ECN:   dataplane.CEOrDrop,
			Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 1}, {Field: dataplane.PCP, Value: 1}},
		}})
		if hook != image.XdpEntry {
			policy.Classes[0].Yellow = &dataplane.Action{Queue: &dataplane.Queue{Config: fullQueue}}
		}
		policy = withCustomers(policy, dataplane.BySource, hook != image.XdpEntry)
		g, err := encodePolicy(policy, hook, "")
		if err != nil {
			t.Fatal(err)
		}
		spec, err := engine.ShaperSpec()
		if err != nil {
			t.Fatal(err)
		}
		g.Constants.Link = uint8(dataplane.LinkEthernet)
		if err := spec.Variables[bpf.ShaperVarPolicy].Set(g.Constants); err != nil {
			t.Fatal(err)
		}
		for name := range spec.Programs {
			if name != image.Programs[hook] {
				delete(spec.Programs, name)
			}
		}
		c, err := ebpf.NewCollectionWithOptions(spec,
			ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		log := c.Programs[image.Programs[hook]].VerifierLog
		_, list, _ := strings.Cut(log, "stack depth ")
		list, _, _ = strings.Cut(list, "\n")
		deepest, own := 0, 0
		for i, text := range strings.Split(list, "+") { // frames of the program and of its leaf functions
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
			t.Errorf("hook %d: got %d + %d bytes of stack, want at most 512, the limit of kernels before 6.9",
				hook, own, deepest)
		}
	}
}
