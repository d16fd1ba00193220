package main

import "regexp"

// reasons says why figures miss their bar or aim. The first pattern to match the name of a figure
// counts.
var reasons = []struct {
	figures *regexp.Regexp
	reason  string
}{
	{
		regexp.MustCompile(`^rte_meter.*one meter, a packet at a time`),
		"each packet depends on the state that the previous one stored, a chain of 19 cycles; `Colors` avoids it",
	},
	{
		regexp.MustCompile(`^rte_meter.*prefetched by both`),
		"if all is in the L1 cache, ColorEach takes 5.6 ns a packet; the rest are cache misses of both sides. A prefetch instruction in assembly gained nothing",
	},
	{
		regexp.MustCompile(`^rte_meter.*bursts of 32 across them$`),
		"memory latency: 32 bytes of state against rte_meter's 24 (srTCM)",
	},
	{
		regexp.MustCompile(`^rte_meter.*a million meters, a packet at a time`),
		"probably its 105 instructions a packet, counted in the assembly: fewer cache misses overlap than with inlined C; ColorEach is the remedy",
	},
	{
		regexp.MustCompile(`^rte_meter.*bursts of 32 with one time`),
		"25 instructions a packet take 1.8 ns; rte_meter gains most from one time",
	},
	{
		regexp.MustCompile(`^x/time/rate.*AllowN`),
		"each packet depends on the state that the previous one stored; `Colors` avoids that",
	},
	{
		regexp.MustCompile(`^x/time/rate.*2 goroutines`),
		"the cache line with the lock moves between the cores",
	},
	{
		regexp.MustCompile(`^throttled.*without a bound`),
		"it keeps no order of use, as a table with a bound must",
	},
	{
		regexp.MustCompile(`^throttled.*clock read`),
		"reading the clock is half of our time; a coarse clock avoids that",
	},
	{
		regexp.MustCompile(`^table: a million keys, random hits, bursts`),
		"a hit touches the index, the meter, its place in the order of use and two neighbors: 48 MB, more than the L3 cache. Huge pages gained 8 %",
	},
	{
		regexp.MustCompile(`^table: a million keys, random hits, a packet`),
		"the cache misses of one packet do not overlap; ColorEach and Prefetch are the remedy",
	},
	{
		regexp.MustCompile(`^parse, classify`),
		"parsing takes 28 %, the meter 27 %, the rest is spread over many small things",
	},
	{
		regexp.MustCompile(`^replay --engine bpf`),
		"each packet is copied into the program's memory, and its verdict is read back",
	},
	{
		regexp.MustCompile(`^a policy of 4,096 classes: shaper`),
		"on one core the YAML parser takes 55 to 72 ms, our reader of its nodes 40, compilation 20, the text of check 28",
	},
	{
		regexp.MustCompile(`^a policy of 4,096 classes: memory`),
		"the parser makes 26 MB of nodes before the first class is read; the garbage collector keeps up to twice of what is in use",
	},
	{
		regexp.MustCompile(`^tcpdump.*4 M packets`),
		"a packet takes 85 to 90 ns of CPU time in user space: the pipeline 40, replay 20, the rest copies; two threads share it unevenly",
	},
	{
		regexp.MustCompile(`^tcpdump.*64 B`),
		"the pipeline takes half of the time, replay a quarter, the kernel a fifth; tcpdump only copies",
	},
	{
		regexp.MustCompile(`^tcpdump.*one core`),
		"copies and reads of the kernel take 31 % of the time, the pipeline 40 %, replay 22 %",
	},
	{
		regexp.MustCompile(`^replay -o x.gz`),
		"deflate at its fastest level, 570 MB/s a core, with the checksum",
	},
	{
		regexp.MustCompile(`^wheel: .*(1,000 queues|at random)`),
		"probably cache misses: the same operations in the order of memory take a quarter of the time",
	},
	{
		regexp.MustCompile(`^replay through a full queue`),
		"the queue is fair: until it decides, a packet waits with its verdict, its tokens and a copy of its record, which are several random accesses to more memory than the L2 cache",
	},
	{
		regexp.MustCompile(`^kernel: TCP over veth`),
		"not known: sender, receiver and kernel share two cores, and single rounds differ by a third",
	},
	{
		regexp.MustCompile(`^(kernel|TAP): UDP 1472 B.*p99`),
		"single late wake-ups: the median of the gaps is 242.2 µs, the ideal",
	},
	{
		regexp.MustCompile(`^kernel: program over an empty one`),
		"of it the clock takes 26 ns, the meter 18 (two compare-and-swaps), the rest is six look-ups, parsing and spilled registers, no place above 5 %",
	},
	{
		regexp.MustCompile(`^kernel: two CPUs.*green`),
		"a packet swaps two words of one cache line, which moves between the CPUs; reading both first, or one exchange-and-add, gained nothing",
	},
	{
		regexp.MustCompile(`^kernel: a meter for each of a million`),
		"the kernel's hash look-up takes 72 %: the line of its bucket, then that of the element, each a random access to memory",
	},
	{
		regexp.MustCompile(`^pipeline: 100,000 customers`),
		"a look-up of the prefix and the state of the customer, 128 bytes, are two more random accesses to memory",
	},
	{
		regexp.MustCompile(`^kernel: 100,000 customers`),
		"prefix, customer and plan are three more random accesses to memory, and the state has a lock, so that a plan can change at any time",
	},
	{
		regexp.MustCompile(`^kernel: all maps of 100,000 customers`),
		"144 bytes of state and counters with room for an eighth more customers, 85 of two prefixes in a table that is half full, 23 of spare plans",
	},
	{
		regexp.MustCompile(`^kernel: a million customers`),
		"the maps take 253 MB; the process reads the file and builds the tables in its own memory first",
	},
	{
		regexp.MustCompile(`^kernel: a customer changed by the API.*99 %`),
		"shaper, the client and the flood share two cores, so a call waits for its turn",
	},
	{
		regexp.MustCompile(`^kernel: a customer changed by the API`),
		"the process takes about 0.25 ms for both directions and the file of changes; the rest is the client, HTTP and waking up",
	},
	{
		regexp.MustCompile(`^kernel: CPU per UDP packet with a queue`),
		"without fq a queue is an HTB leaf plus the program, which keeps the queue's time under a lock",
	},
	{
		regexp.MustCompile(`^kernel: shaper run, 1 class$`),
		"the verifier takes at least 33 ms, the grace period of RCU at the attachment 6 to 17 ms, parsing the object 5 ms, and the start of the process 4 ms",
	},
	{
		regexp.MustCompile(`^kernel: shaper reload, 1 class$`),
		"the verifier takes 33 ms, parsing the object 5 ms, and the start of the process 4 ms",
	},
	{
		regexp.MustCompile(`^TAP: UDP.*standard deviation`),
		"single stalls of the machine of 0.5 to 2 ms; 80 % of the gaps are within 2 µs",
	},
	{
		regexp.MustCompile(`^TAP to TAP: 64 B UDP.*packets/s$`),
		"shaper forwards all that the sender on the other core can send, so the sender is the limit",
	},
	{
		regexp.MustCompile(`^TAP to TAP: 64 B UDP.*CPU time`),
		"each packet takes a read, 0.7 µs; io_uring would take 0.55. The writer also pays for the receiver's protocol stack",
	},
	{
		regexp.MustCompile(`^1,000 random trees: (lag behind the fluid|error)`),
		"a child that its own rate limits gets the lower of its rate and its average share, where the fluid rule gives it the average of the lower one",
	},
	{
		regexp.MustCompile(`^shares of 10 hosts: (bytes in 1 s less|until freed)`),
		"one call in an interval: a freed share waits for the call of the host that frees it, and for the calls of the others",
	},
}

// reasonOf returns the reason for a figure, or "".
func reasonOf(what string) string {
	for _, r := range reasons {
		if r.figures.MatchString(what) {
			return r.reason
		}
	}
	return ""
}
