package livetest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestLiveRecipeGoAPI builds the HTTP server of the recipe and sends requests from two addresses.
func TestLiveRecipeGoAPI(t *testing.T) {
	skipInVM(t)
	r := newRecipe(t, "goapi", "eth0")
	const source = "../../../../docs/recipes/goapi/main.go"
	program := filepath.Join(t.TempDir(), "goapi")
	for _, args := range [][]string{{"vet", source}, {"build", "-o", program, source}} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v: %s", args, err, out)
		}
	}
	server := exec.Command(program, "-listen", "10.0.0.1:8080", "-every", "1000h", "-burst", "3")
	r.startCommand(server)
	r.devices("eth0", "10.0.0.3")
	eventually(t, func() error {
		var conn net.Conn
		var err error
		if r.far.Do(func() { conn, err = net.Dial("tcp4", "10.0.0.1:8080") }); err == nil {
			conn.Close()
		}
		return err
	})
	get := func(from string) string {
		t.Helper()
		return strings.TrimSpace(r.far.Run("curl", "-s", "-o", "/dev/null", "--interface", from, "-w",
			"%{http_code} %header{ratelimit-remaining} %header{retry-after}", "http://10.0.0.1:8080/"))
	}
	for i, want := range []string{"200 2", "200 1", "200 0", "429 0"} {
		got := get("10.0.0.2")
		if i == 3 {
			// The time until the next request is 1,000 hours, less the time of this test.
			seconds, err := strconv.Atoi(strings.TrimPrefix(got, "429 0 "))
			if err != nil || seconds <= 3_500_000 || seconds > 3_600_000 {
				t.Errorf("request 4 got %q: want 429 0, and to retry after 1,000 hours", got)
			}
		} else if got != want {
			t.Errorf("request %d got %q: want %q", i+1, got, want)
		}
	}
	if got := get("10.0.0.3"); got != "200 2" {
		t.Errorf("the first request of another client got %q: want 200 2", got)
	}
}

// TestLiveRecipeBurst floods a policer of the provider, and finds its burst in a capture made behind it. With
// the policy for this burst in front, the policer drops nothing.
func TestLiveRecipeBurst(t *testing.T) {
	skipInVM(t)
	r := newRecipe(t, "burst", "eth0")
	// The provider has a rate of 1 kB/s, and a burst that the recipe does not know.
	const rate, burst, length = 1000, 150_000, 1000
	provider := &pair{t: t, near: r.far, far: r.near}
	police := func() *process {
		p := provider.startShaper("run", "v0", "--direction", "ingress", "--hook", "tc", "--meter",
			fmt.Sprintf("token-bucket rate=%dB/s burst=%d", rate, burst))
		p.awaitAttached()
		return p
	}
	policer := police()
	s := provider.near
	behind := (&pair{t: t, near: s}).sniffAfterTC()
	begin := time.Now()
	r.must("/etc/shaper/flood", "10.0.0.2")
	time.Sleep(quietTime())
	took := time.Since(begin).Seconds()
	frames := behind.Stop()
	if dropped := provider.countedByAll(); dropped.Packets != 1000 || len(frames) >= 1000 {
		t.Fatalf("the policer saw %+v, and %d packets arrived", dropped, len(frames))
	}
	capture := writeCapture(t, frames)
	text, err := os.ReadFile(capture)
	if err != nil {
		t.Fatal(err)
	}
	r.write("behind.pcap", string(text))
	out := r.must("/etc/shaper/find-burst", "/etc/shaper/behind.pcap", fmt.Sprintf("%dB/s", rate))
	found, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	// A packet is stamped later than it was metered, by less than the whole measurement.
	if err != nil || found < burst-length-rate*took || found > burst+rate*took {
		t.Errorf("found a burst of %q (%v): want %d, or up to a packet less, ± %.0f", out, err, burst, rate*took)
	}
	policer.stopBySIGTERM()
	policer = police()
	r.edit("burst.yaml", "rate: 20mbit, burst: 147kB", fmt.Sprintf("rate: %dB/s, burst: %.0f", rate, found-3*length))
	r.shape("burst.yaml")
	r.must("/etc/shaper/flood", "10.0.0.2")
	r.wantDroppedAll()
	if c := provider.stats(); c.Dropped.Packets != 0 || c.classNamed(t, "all").Packets == 0 {
		t.Errorf("behind our own limit the policer dropped %+v", c)
	}
	r.run.stopBySIGTERM()
	policer.stopBySIGTERM()
}

// wantDroppedAll checks that the class all has dropped packets of a flood.
func (r *recipe) wantDroppedAll() {
	r.t.Helper()
	eventually(r.t, func() error {
		s := r.stats()
		if c := s.classNamed(r.t, "all"); c.Packets != 1000 || c.Dropped.Packets == 0 {
			return fmt.Errorf("class all: %+v: want 1,000 packets, and some dropped", c)
		}
		return nil
	})
}

// TestLiveRecipeCI tests a policy with a capture of real packets of this machine, breaks the policy, and
// tests it again.
func TestLiveRecipeCI(t *testing.T) {
	skipInVM(t)
	r := newRecipe(t, "ci", "eth0")
	at := net.IPv4(10, 0, 0, 2)
	in := listenUDP(t, r.far, at)
	s := r.far.Sniff("v0")
	const ef = 46 << 2
	sendUDP(t, newSender(t, r.near, at, 0, 0), 500, 1000)
	sendUDP(t, newSender(t, r.near, at, ef, 0), 20, 200)
	if got := len(in.receiveAll()); got != 520 {
		t.Fatalf("%d of 520 packets arrived", got)
	}
	frames := s.Stop()
	for i := range frames { // a busy machine sends with pauses, in which the buckets fill
		frames[i].Time = frames[0].Time + int64(i)*int64(10*time.Microsecond)
	}
	text, err := os.ReadFile(writeCapture(t, frames))
	if err != nil {
		t.Fatal(err)
	}
	r.write("live.pcap", string(text))
	r.edit("test-policy", "'.bulk.green.bytes > 250000'", "'.bulk.green.bytes > 100000'") // a shorter capture
	policy, err := os.ReadFile(filepath.Join(r.dir, "policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const whole = "rate: 400kbit, burst: 64KiB}"
	for _, test := range []struct{ old, replacement, broken string }{
		{whole, whole, ""},
		{whole, "rate: 400kbit, burst: 3000}", "voice is never dropped"},
		{whole, whole + ", green: {dscp: af41}", "voice is never remarked"},
		{"cir: 1mbit, cbs: 128KiB, pir: 2mbit, pbs: 256KiB", "cir: 1mbit, cbs: 64KiB, pir: 2mbit, pbs: 256KiB", "bulk gets"},
		{"match: {dscp: ef}", "match: {dscp: cs5}", "the capture has voice"},
		{"cir: 1mbit", "cir: 9mbit", "pir 2mbit is below CIR"}, // check finds it
	} {
		r.write("policy.yaml", string(policy))
		r.edit("policy.yaml", test.old, test.replacement)
		out, err := r.in(r.near, "/etc/shaper/test-policy", "/etc/shaper/live.pcap")
		if ok := err == nil; ok != (test.broken == "") || !strings.Contains(out, test.broken) {
			t.Errorf("with %q: %v: %s: want %q", test.replacement, err, out, test.broken)
		}
	}
}
