package livetest

import (
	"regexp"
	"strings"
	"testing"
)

// TestLiveKernel shapes packets with each part of the kernel that shaper uses. If the kernel lacks a part,
// the command must say so and change nothing; then the test is skipped. docs/KERNELS.md is made of the
// results.
func TestLiveKernel(t *testing.T) {
	t.Parallel()
	const meter = "classes: [{name: all, meter: {type: token-bucket, rate: 1gbit, burst: 1MiB}}]\n"
	const queued = "classes: [{name: all, green: {queue: q}}]\n"
	const ownQueue = queued + "queues: {q: {rate: 500mbit, limit: 50ms, fair: false}}\n"
	for _, test := range []struct{ name, policy, flags, refusal string }{
		{"tcx", meter, "--hook tcx --direction egress", "TCX needs kernel 6.6 or newer: use --hook tc"},
		{"tcx ingress", meter, "--hook tcx --direction ingress", "TCX needs kernel 6.6 or newer: use --hook tc"},
		{"tc", meter, "--hook tc --direction egress", ""},
		{"tc ingress", meter, "--hook tc --direction ingress", ""},
		{"xdp", meter, "--hook xdp --direction ingress", ""},
		{"fq", ownQueue, "--pacer fq --direction egress", "this kernel has no fq qdisc, and no module sch_fq"},
		{"htb", ownQueue, "--pacer htb --direction egress", ""},
		{"ifb", ownQueue, "--direction ingress", ""},
		{
			"links", queued + "links: {up: {rate: 500mbit}}\nqueues: {q: {link: up, limit: 50ms}}\n",
			"--direction egress", "",
		},
		{
			"fq_codel", queued + "links: {up: {rate: 500mbit}, ap: {link: up, rate: 400mbit}}\n" +
				"queues: {q: {link: ap, limit: 50ms, fair: flow}}\n",
			"--direction egress", "this kernel has no fq_codel qdisc, and no module sch_fq_codel: use shaper tap",
		},
		{
			"cake", queued + "queues: {q: {rate: 500mbit, limit: 50ms, fair: hosts, ecn: true}}\n",
			"--direction egress", "this kernel has no cake qdisc, and no module sch_cake: use fair: flow, or shaper tap",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := anotherPair(t)
			before, qdiscs := p.deviceState(), p.qdiscState()
			run := append(strings.Fields(test.flags), "--background", "--policy", writePolicy(t, test.policy))
			r := p.startShaper(append([]string{"run", "v0"}, run...)...)
			if code := r.waitForExit(); code != 0 {
				said := r.err.String()
				if test.refusal == "" || !strings.HasSuffix(said, test.refusal+"\n") {
					t.Fatalf("exit code %d: %q, want %q", code, said, test.refusal)
				}
				p.awaitClean(before, qdiscs)
				reason, _, _ := strings.Cut(test.refusal, ",")
				t.Skip("refused: " + reason)
			}
			_, direction, _ := strings.Cut(test.flags, "--direction ")
			m := placement{direction: direction}
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			in := listenUDP(t, to, at)
			sendUDP(t, newSender(t, from, at, 0, 0), 5, 100)
			if got := len(in.receiveAll()); got != 5 {
				t.Errorf("%d packets arrived, want 5", got)
			}
			if got := p.countedByAll().Packets; got < 5 {
				t.Errorf("%d packets counted, want at least 5", got)
			}
			status, _ := p.wantExit(0, "status")
			qdisc := regexp.MustCompile(`fq_codel|cake`).FindString(test.name)
			if now := status + p.qdiscState(); !strings.Contains(now, qdisc) {
				t.Errorf("no %s in\n%s", qdisc, now)
			}
			p.wantExit(0, "detach", "v0")
			p.awaitClean(before, qdiscs)
		})
	}
}
