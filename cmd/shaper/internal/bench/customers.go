package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

const numPaced = 10_000 // customers

func customerFigures() []figure {
	with := func(each bool) side {
		return onSource(sync.OnceValues(func() (*sources, error) { return newSubscribers(each, false) }),
			(*sources).random)
	}
	return []figure{
		timeRatio("pipeline: 100,000 customers, IPv4 and IPv6, random hits, against one meter for all", 3, 2,
			with(true), with(false)),
		amount("pipeline: 10,000 paced customers at twice their rates, largest error of a rate", 0.01, 0,
			" %", pacedError, nil),
	}
}

// pacedError sends customers twice their rates for 10 s, and returns the largest difference between
// the rates of a customer and of its plan, in %. A difference below 1 ns counts as 0.
func pacedError() (float64, error) {
	const size, span = 1000, 10 * time.Second
	list := customers(numPaced)
	for i := range list.List {
		c := &list.List[i]
		c.Plan = &dataplane.ServicePlan{
			Name:  c.Name,
			Queue: &queue.Config{Rate: meter.BitRate(200_000 + 71*int64(i)), Time: 50 * time.Millisecond},
		}
	}
	list.Plans = nil
	plan, err := compiled.Compile(&dataplane.Policy{Customers: list, Classes: []dataplane.Class{
		{Name: "all", Match: dataplane.Match{Customer: true}, Meter: &dataplane.Meter{Name: "m"}},
	}})
	if err != nil {
		return 0, err
	}
	l, v, worst := pipeline.FromPlan(plan), dataplane.Verdict{}, 0.0
	p := dataplane.Packet{Data: bytes.Clone(smallFrame), WireLen: 14 + size, Link: dataplane.LinkEthernet}
	offered, first, last, bytes := [numPaced]float64{}, [numPaced]int64{}, [numPaced]int64{},
		[numPaced]float64{}
	for now := int64(0); now < int64(span); now += int64(time.Millisecond) {
		for i := range list.List {
			rate := 2 * float64(200_000+71*i) / 8e9 // bytes per ns
			for ; offered[i] < rate*float64(now); offered[i] += size {
				binary.BigEndian.PutUint32(p.Data[30:], 10<<24|uint32(i))
				p.Time = now
				switch l.Process(&p, &v); {
				case v.Customer != uint32(i+1):
					return 0, fmt.Errorf("customer %d has a packet of customer %d", v.Customer, i+1)
				case v.Done.Dropped():
				case bytes[i] == 0:
					first[i], bytes[i] = v.Departure, size
				default:
					last[i], bytes[i] = v.Departure, bytes[i]+size
				}
			}
		}
	}
	for i := range bytes {
		// The bytes before the last packet take the time until it. Departures are whole ns.
		exact := (bytes[i] - size) * 8e9 / float64(200_000+71*i)
		if off := math.Abs(float64(last[i]-first[i]) - exact); off >= 1 {
			worst = max(worst, 100*off/exact)
		}
	}
	return worst, nil
}

// customerReplays returns figures of replays with customers.
func customerReplays(start func() (*captures, error)) []figure {
	paced := onSource(start, func(c *captures) (float64, error) {
		args, err := c.paced()
		if err != nil {
			return 0, err
		}
		return memory(c.shaper, args...)
	})
	plain := onSource(start, func(c *captures) (float64, error) {
		args, err := c.paced()
		if err != nil {
			return 0, err
		}
		return memory(c.shaper, replayed(args[1])...)
	})
	load := func(n int, measure func(name string, args ...string) (float64, error)) side {
		return onSource(start, func(c *captures) (float64, error) {
			args, err := c.loading(n)
			if err != nil {
				return 0, err
			}
			return measure(c.shaper, args...)
		})
	}
	seconds := func(name string, args ...string) (float64, error) {
		ns, err := elapsed(1, name, args...)
		return ns / 1e9, err
	}
	each := func(file bool) side {
		return onSource(start, func(c *captures) (float64, error) {
			args, err := c.eachCustomer()
			if err != nil {
				return 0, err
			}
			if !file {
				args = replayed(args[1])
			}
			return elapsed(captured, c.shaper, args...)
		})
	}
	return []figure{
		timeRatio("replay of 4 M packets of 64 B, 100,000 customers at random, against one meter", 3, 2,
			each(true), each(false)),
		amount("memory of replay through queues of 10,000 customers, 75 MB queued; other: plain replay", 256,
			128, " MiB", paced, plain),
		amount("replay of one packet with 100,000 customers from a file", 1, 0.3, " s",
			load(100_000, seconds), nil),
		amount("replay of one packet with a million customers from a file", 10, 3, " s",
			load(1_000_000, seconds), nil),
		amount("memory of replay with 100,000 customers", 200, 64, " MiB", load(100_000, memory), nil),
		amount("memory of replay with a million customers", 2048, 300, " MiB", load(1_000_000, memory), nil),
	}
}

// paced returns the arguments of a replay of packets of 1000 bytes to random customers, at
// twice their rates, through a queue of 400 ms for each customer.
func (c *captures) paced() ([]string, error) {
	args, err := c.withCustomers("paced", numPaced, "queue: {rate: 150kbit, limit: 400ms}", 200_000,
		framesTo(numPaced, 1000))
	return append(args, "-o", "/dev/null"), err
}

// eachCustomer returns the arguments of a replay of packets of 64 bytes to random customers.
func (c *captures) eachCustomer() ([]string, error) {
	args, err := c.withCustomers("each", numCustomers, meteredPlan, captured, framesTo(numCustomers, 46))
	return append(args, "-o", "/dev/null"), err
}

// framesTo returns a frame to each of n customers, with IPv4 packets of a length.
func framesTo(n int, length uint16) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = make([]byte, 14+int(length))
		copy(all[i], smallFrame)
		binary.BigEndian.PutUint16(all[i][16:], length)
		binary.BigEndian.PutUint32(all[i][30:], 10<<24|uint32(i))
	}
	return all
}

// meteredPlan is the plan of customers with meters.
const meteredPlan = "type: trtcm, cir: 50mbit, cbs: 1MiB, pir: 60mbit, pbs: 1MiB"

// loading returns the arguments of a replay of one packet with n customers.
func (c *captures) loading(n int) ([]string, error) {
	return c.withCustomers(fmt.Sprint("customers", n), n, meteredPlan, 1, [][]byte{smallFrame})
}

// withCustomers returns the arguments of a replay of random frames, with n customers of one plan. Its
// first call makes the files.
func (c *captures) withCustomers(
	name string, n int, plan string, packets int, frames [][]byte,
) ([]string, error) {
	dir := filepath.Join(filepath.Dir(c.long), name)
	args := []string{"replay", filepath.Join(dir, "in.pcap"), "--policy", filepath.Join(dir, "policy.yaml")}
	if _, err := os.Stat(dir); err == nil {
		return args, nil
	}
	return args, errors.Join(writeTable(dir, n, plan), writeCapture(args[1], packets, frames))
}

// writeTable writes a policy and n customers with one plan into a new directory.
func writeTable(dir string, n int, plan string) error {
	policy := "classes: [{name: customers, per: customer, meter: plan}]\ncustomers: {file: customers.csv}\nplans: {p: {" +
		plan + "}}\n"
	if err := errors.Join(os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(policy), 0o600)); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "customers.csv"))
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	fmt.Fprintln(w, "customer,address,plan")
	for _, c := range customers(n).List {
		fmt.Fprintf(w, "%s,%v %v,p\n", c.Name, c.Prefixes[0], c.Prefixes[1])
	}
	return errors.Join(w.Flush(), f.Close())
}
