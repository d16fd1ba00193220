package livetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// sizedFrame returns a frame to an address 192.0.2.last with an IPv4 packet of n bytes.
func sizedFrame(last byte, n int) []byte {
	f := ipv4Frame(n)
	copy(f[30:], []byte{192, 0, 2, last})
	f[24], f[25] = 0, 0
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(f[i])<<8 | uint32(f[i+1])
	}
	sum = sum>>16 + sum&0xffff
	f[24], f[25] = ^byte(sum>>8), ^byte(sum)
	return f
}

// TestLiveCustomersComeAndGo adds, moves and removes customers hundreds of times while two CPUs send to all
// their addresses. The packets to each address have a length of their own, so the bytes of a customer show
// whether it was ever charged for another address. Another customer notices nothing, and no packet is lost
// from the counters of classes.
func TestLiveCustomersComeAndGo(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	s := newControlSockets(t)
	policy, _ := writeTable(t, "green: pass", `
  frozen: {type: token-bucket, rate: 1B/1000s, burst: 10kB}
  open: {type: token-bucket, rate: 1gbit, burst: 1GB}
  small: {type: token-bucket, rate: 1B/1000s, burst: 1kB}
`, "customer,address,plan\nkept,192.0.2.1,frozen\n")
	r := p.runShaper(s.flags("--policy", policy)...)
	program, table := p.stats().ProgramID, p.customerMap()

	const addresses = 6 // 192.0.2.11 and so on, with packets of 101 bytes and so on
	frames := [][]byte{sizedFrame(1, 100)}
	for k := range byte(addresses) {
		frames = append(frames, sizedFrame(11+k, 101+int(k)))
	}
	var stopping atomic.Bool
	var sent [2]int64
	var load sync.WaitGroup
	for cpu := range 2 {
		send := p.near.Injector("v0")
		load.Add(1)
		go onCPU(t, cpu, func() {
			defer load.Done()
			for !stopping.Load() {
				if err := send(frames...); err != nil {
					t.Error(err)
					return
				}
				sent[cpu]++
				time.Sleep(time.Millisecond)
			}
		})
	}
	owner, names, counted := map[int]string{}, 0, map[string]int64{}
	check := func() {
		t.Helper()
		for name, row := range p.customers() {
			n := int64(100)
			if name != "kept" {
				k, err := strconv.Atoi(name[1:2])
				if err != nil {
					t.Fatal(err)
				}
				n = 101 + int64(k)
			}
			counted[name] = max(counted[name], row.Packets)
			if row.Bytes != n*row.Packets {
				t.Fatalf("customer %s counted %+v: want packets of %d bytes", name, row.packetCount, n)
			}
		}
	}
	for round := range 200 {
		var changes []map[string]any
		for _, k := range rand.Perm(addresses)[:1+rand.IntN(3)] {
			if name := owner[k]; name != "" && rand.IntN(3) > 0 {
				delete(owner, k)
				changes = append(changes, map[string]any{"name": name, "do": "remove"})
			}
			if owner[k] == "" && rand.IntN(4) > 0 { // an address often has another owner at once
				names++
				owner[k] = fmt.Sprintf("s%d-%d", k, names)
				changes = append(changes, map[string]any{
					"name": owner[k], "address": fmt.Sprintf("192.0.2.%d", 11+k), "plan": []string{"open", "small"}[rand.IntN(2)],
				})
			}
		}
		if len(changes) > 0 {
			wantAnswer(t, http.StatusOK, s.write, "/v1/customers", changes)
		}
		if round%10 == 9 {
			check()
		}
	}
	stopping.Store(true)
	load.Wait()
	check()
	if now := p.stats(); now.ProgramID != program || p.customerMap() != table {
		t.Error("the program or the map was replaced: want neither")
	}
	rounds := sent[0] + sent[1]
	kept := p.customers()["kept"]
	if passed := kept.Packets - kept.Dropped.Packets; kept.Packets != rounds || passed != 100 {
		t.Errorf("the customer without changes counted %+v: want %d packets, 100 passed", kept, rounds)
	}
	bytes := rounds * 100
	for k := range int64(addresses) {
		bytes += rounds * (101 + k)
	}
	last := p.stats()
	if got := last.sumOfProto253(); got != (packetCount{rounds * (addresses + 1), bytes}) {
		t.Errorf("the classes counted %+v: want %d packets and %d bytes", got, rounds*(addresses+1), bytes)
	}
	if len(counted) < 20 {
		t.Errorf("only %d customers had packets", len(counted))
	}
	r.stopBySIGTERM()
	p.wantNothingLeft()
}

// killRounds is the number of kills in TestLiveCustomersKilled. SHAPER_KILLS changes it.
const killRounds = 4

// acknowledged is the last acknowledged state of a customer, and the one of a request without an answer.
type acknowledged struct {
	mu        sync.Mutex
	now, next map[string]string // by name; "": none
	open      map[string]bool   // next may be in force
	answers   atomic.Int64
}

// TestLiveCustomersKilled kills the process with --state at random moments while customers are added, changed
// and removed. After the next start there are exactly those that were acknowledged, and perhaps those of a
// request that had no answer.
func TestLiveCustomersKilled(t *testing.T) {
	skipInVM(t)
	rounds := killRounds
	if text := os.Getenv("SHAPER_KILLS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	p := newPair(t)
	s := newControlSockets(t)
	state := t.TempDir()
	policy, _ := writeTable(t, "green: pass", `
  a: {type: token-bucket, rate: 1mbit, burst: 10kB}
  b: {type: token-bucket, rate: 2mbit, burst: 10kB}
`, "customer,address,plan\nkept,192.0.2.1,a\n")
	known := acknowledged{now: map[string]string{}, next: map[string]string{}, open: map[string]bool{}}
	r := p.runShaper(s.flags("--policy", policy, "--state", state)...)
	for range rounds {
		known.killDuringWrites(t, r, s.write)
		r = p.runShaper(s.flags("--policy", policy, "--state", state)...)
		out, _ := p.wantExit(0, "customer", "list", "v0", "--json")
		got := map[string]string{}
		for line := range strings.Lines(out) {
			var row struct{ Name, Plan string }
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				t.Fatal(err)
			}
			if row.Name != "kept" {
				got[row.Name] = row.Plan
			}
		}
		for name := range known.next {
			if plan := got[name]; plan != known.now[name] && !(known.open[name] && plan == known.next[name]) {
				t.Fatalf("customer %s has plan %q: acknowledged was %q (open request: %v, %q)", name, plan, known.now[name],
					known.open[name], known.next[name])
			}
			known.now[name], known.open[name] = got[name], false
		}
	}
	t.Logf("%d kills, %d acknowledged changes", rounds, known.answers.Load())
	r.stopBySIGTERM()
}

// killDuringWrites sends requests from four goroutines, and kills the process after a random number of
// answers.
func (known *acknowledged) killDuringWrites(t *testing.T, r *process, socket string) {
	t.Helper()
	var writers sync.WaitGroup
	var dead atomic.Bool
	begin := known.answers.Load()
	for w := range 4 {
		writers.Add(1)
		go func() {
			defer writers.Done()
			for !dead.Load() {
				n := rand.IntN(8)
				name := fmt.Sprintf("w%d-%d", w, n)
				next := []string{"", "a", "b"}[rand.IntN(3)]
				body := map[string]any{"name": name, "do": "reset"}
				if next != "" {
					body = map[string]any{"name": name, "plan": next, "address": fmt.Sprintf("10.%d.0.%d", w, n)}
				}
				known.mu.Lock()
				known.next[name], known.open[name] = next, true
				known.mu.Unlock()
				if status, ok := tryControl(socket, "/v1/customers", body); !ok {
					return
				} else if status != http.StatusOK {
					t.Errorf("%v: got %d", body, status)
					return
				}
				known.mu.Lock()
				known.now[name], known.open[name] = next, false
				known.mu.Unlock()
				known.answers.Add(1)
			}
		}()
	}
	want := begin + rand.Int64N(60)
	eventually(t, func() error {
		if now := known.answers.Load(); now < want {
			return fmt.Errorf("%d answers: want %d", now-begin, want-begin)
		}
		return nil
	})
	r.killAndWait()
	dead.Store(true)
	writers.Wait()
}

// tryControl sends a JSON body to a socket. ok is false without an answer.
func tryControl(socket, path string, body any) (status int, ok bool) {
	client := controlClient(socket)
	text, _ := json.Marshal(body) // maps of strings
	r, err := client.Post("http://shaper"+path, "application/json", bytes.NewReader(text))
	if err != nil {
		return 0, false
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return r.StatusCode, err == nil
}

// TestLiveCustomersChurn prints how long customers need to come and go beside 100,000 others: with
// SHAPER_DEEP only, on a quiet machine.
func TestLiveCustomersChurn(t *testing.T) {
	if !nettest.Deep() {
		t.Skip("prints figures, with SHAPER_DEEP only")
	}
	p := newPair(t)
	s := newControlSockets(t)
	var rows strings.Builder
	rows.WriteString("customer,address,plan\n")
	for i := range 100_000 {
		fmt.Fprintf(&rows, "c%d,10.%d.%d.%d,a\n", i, i>>16, i>>8&255, i&255)
	}
	policy, _ := writeTable(t, "green: pass", `
  a: {type: token-bucket, rate: 1mbit, burst: 10kB}
`, rows.String())
	for _, state := range []string{"", t.TempDir()} {
		flags := s.flags("--policy", policy)
		if state != "" {
			flags = append(flags, "--state", state)
		}
		r := p.runShaper(flags...)
		client := http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return net.Dial("unix", s.write)
			},
			MaxIdleConnsPerHost: 20,
		}}
		post := func(body string) time.Duration {
			begin := time.Now()
			answer, err := client.Post("http://shaper/v1/customers", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Errorf("%s: %d %s", body, answer.StatusCode, text)
			}
			return time.Since(begin)
		}
		figures := func(what string, list []time.Duration) {
			slices.Sort(list)
			t.Logf("%s (state %v): %d, median %v, 99th percentile %v, worst %v", what, state != "", len(list),
				list[len(list)/2], list[len(list)*99/100], list[len(list)-1])
		}
		t.Logf("first: %v", post(`{"name":"first","address":"192.0.2.1","plan":"a"}`))
		var alone []time.Duration
		for i := range 300 {
			alone = append(alone, post(fmt.Sprintf(`{"name":"x%d","address":"11.0.%d.%d","plan":"a"}`, i, i>>8, i&255)))
			time.Sleep(5 * time.Millisecond)
		}
		figures("alone", alone)
		// 1,000 starts and 1,000 stops a second
		const clients, span = 16, 10 * time.Second
		var all sync.WaitGroup
		var mu sync.Mutex
		var busy []time.Duration
		begin := time.Now()
		for w := range clients {
			all.Add(1)
			go func() {
				defer all.Done()
				for i := 0; ; i++ {
					due := begin.Add(time.Duration(i) * clients * time.Second / 2000)
					if due.Sub(begin) > span {
						return
					}
					time.Sleep(time.Until(due))
					body := fmt.Sprintf(`{"name":"w%d","address":"12.%d.%d.%d","plan":"a"}`, w, w, i>>8&255, i&255)
					if i%2 == 1 {
						body = fmt.Sprintf(`{"name":"w%d","do":"remove"}`, w)
					}
					took := post(body)
					mu.Lock()
					busy = append(busy, took)
					mu.Unlock()
				}
			}()
		}
		all.Wait()
		t.Logf("%d changes in %v", len(busy), time.Since(begin))
		figures("2,000 changes a second", busy)
		r.stopBySIGTERM()
	}
}
