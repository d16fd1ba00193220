package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sort"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

const (
	pacedPayload = 1472
	pacedFrame   = pacedPayload + 42 // on the wire, without FCS
	pacedTime    = 2 * time.Second
	evenRate     = 50_000_000 // bit/s
)

// queued is a policy that puts all IP packets into one queue.
func queued(rate int, length string) string {
	return fmt.Sprintf("classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: %dbit, limit: 100ms}}\nlength: %s\n", rate, length)
}

// byHand writes the hand-configured HTB class for a rate that counts frames.
func byHand(rate int) string { return fmt.Sprintf("rate %dbit", rate) }

// inside runs f on a thread in a namespace. Sockets stay in the namespace in which they were
// opened.
func inside(ns string, f func() error) error {
	errs := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			errs <- err
			return
		}
		defer unix.Close(home)
		there, err := unix.Open("/run/netns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			errs <- err
			return
		}
		defer unix.Close(there)
		if err = unix.Setns(there, unix.CLONE_NEWNET); err == nil {
			err = f()
		}
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with the goroutine
		}
		errs <- err
	}()
	return <-errs
}

// udp opens a UDP socket in a namespace, with a buffer for all packets of a round.
func udp(ns string) (fd int, err error) {
	err = inside(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, err
	}
	for _, o := range []int{unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, 64<<20))
	}
	return fd, err
}

// errBehind means that the queue was empty at times.
var errBehind = errors.New("the sender fell behind: the machine is busy")

// paced offers UDP at a fifth more than a rate in bit/s. It returns the packets' times of
// arrival, in ns of the kernel's clock.
func (w *wire) paced(rate int) (at []int64, err error) {
	for range 3 {
		if at, err = w.pacedOnce(rate); !errors.Is(err, errBehind) {
			break
		}
	}
	return at, err
}

func (w *wire) pacedOnce(rate int) ([]int64, error) {
	// At 1 Gbit/s a core is too slow for single packets. There, 16 packets are sent as one GSO
	// packet, which is split after the queue; they arrive at the same time.
	segments := 1
	if rate > 500_000_000 {
		segments = 16
	}
	out, err := udp(w.a)
	if err != nil {
		return nil, err
	}
	defer unix.Close(out)
	in, err := udp(w.b)
	if err != nil {
		return nil, err
	}
	defer unix.Close(in)
	err = errors.Join(
		unix.SetsockoptInt(out, unix.IPPROTO_UDP, unix.UDP_SEGMENT, pacedPayload),
		unix.SetsockoptInt(in, unix.IPPROTO_UDP, unix.UDP_GRO, 1),
		unix.SetsockoptInt(in, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptTimeval(in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 500_000}),
		unix.Bind(in, &unix.SockaddrInet4{Port: 9}),
		unix.Connect(out, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{10, 0, 0, 2}}),
	)
	if err != nil {
		return nil, err
	}
	// The first packet resolves the neighbor and enables timestamps in the kernel.
	if _, err := unix.Write(out, make([]byte, 1)); err != nil {
		return nil, err
	}
	var at []int64
	var wrong error
	done := make(chan struct{})
	go func() {
		defer close(done)
		at, wrong = stampsOf(in)
	}()
	time.Sleep(100 * time.Millisecond)
	err = offer(out, rate, segments)
	<-done
	if err = errors.Join(err, wrong); err == nil && (len(at) < 100 || at[0] == at[len(at)-1]) {
		err = fmt.Errorf("only %d packets came", len(at))
	}
	return at, err
}

// offer sends for pacedTime. It sends the first 20 ms at once, so that the queue is never
// empty.
func offer(fd, rate, segments int) error {
	data, sent := make([]byte, segments*pacedPayload), 0
	perSecond := float64(rate) / 8 / pacedFrame // packets sent per second
	for begin := time.Now(); time.Since(begin) < pacedTime; time.Sleep(time.Millisecond) {
		if sent > 0 && float64(sent) < perSecond*time.Since(begin).Seconds() {
			return errBehind
		}
		for due := 3 + int(1.2*perSecond*(0.02+time.Since(begin).Seconds())); sent < due; sent += segments {
			if _, err := unix.Write(fd, data); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return err
			}
		}
	}
	return nil
}

// stampsOf reads until no packet arrives within the socket's timeout. It returns the time of
// each paced packet.
func stampsOf(fd int) (at []int64, err error) {
	buf, oob := make([]byte, 1<<16), make([]byte, 256)
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, buf, oob, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return at, nil
		case err != nil:
			return nil, err
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_TIMESTAMPNS {
				continue
			}
			for range n / pacedPayload {
				at = append(at, (*unix.Timespec)(unsafe.Pointer(&m.Data[0])).Nano())
			}
		}
	}
}

// gaps returns the gaps between packets at evenRate, without the first 100, in µs.
func (w *wire) gaps() ([]float64, error) {
	at, err := w.paced(evenRate)
	if err != nil {
		return nil, err
	}
	var gaps []float64
	for i := 101; i < len(at); i++ {
		gaps = append(gaps, float64(at[i]-at[i-1])/1e3)
	}
	if len(gaps) < 1000 {
		return nil, fmt.Errorf("only %d packets came", len(at))
	}
	return gaps, nil
}

func deviation(v []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range v {
		sum += x
	}
	for _, x := range v {
		squares += (x - sum/float64(len(v))) * (x - sum/float64(len(v)))
	}
	return math.Sqrt(squares / float64(len(v)))
}

// spread returns the largest deviation from the ideal gap of 99 % of the gaps.
func spread(gaps []float64) float64 {
	const ideal = pacedFrame * 8e6 / evenRate
	off := make([]float64, len(gaps))
	for i, g := range gaps {
		off[i] = math.Abs(g - ideal)
	}
	slices.Sort(off)
	return off[len(off)*99/100]
}

// rateError compares a rate with the bytes that arrived after the packet at 200 ms, up to the
// last one, in percent. Before that time HTB sends the credit of its burst. Packets with the
// same time as that one are not counted.
func (w *wire) rateError(rate int) (float64, error) {
	at, err := w.paced(rate)
	if err != nil {
		return 0, err
	}
	saved := sort.Search(len(at), func(i int) bool { return at[i] > at[0]+200e6 })
	first, last := at[saved], at[len(at)-1]
	n := len(at) - sort.Search(len(at), func(i int) bool { return at[i] > first })
	measured := float64(n) * pacedFrame * 8e9 / float64(last-first)
	return off(measured, float64(rate)), nil
}

// off returns the deviation from the ideal in percent.
func off(measured, ideal float64) float64 { return 100 * math.Abs(measured-ideal) / ideal }

// goodput compares TCP's goodput with the rate less headers, in percent. length is the metered
// length of a full packet. iperf3 is not used, because it would count the backlog at the end
// for one side or the other.
func (w *wire) goodput(rate, length int) (float64, error) {
	in, out, err := w.tcp(rate)
	if err != nil {
		return 0, err
	}
	sent := make(chan error)
	go func() {
		defer unix.Close(out)
		buf := make([]byte, 1<<18)
		for begin := time.Now(); time.Since(begin) < 4*time.Second; {
			if _, err := unix.Write(out, buf); err != nil && !errors.Is(err, unix.EAGAIN) {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	var first, last time.Time
	received, begin, buf := 0, time.Now(), make([]byte, 1<<20)
	for {
		n, err := unix.Read(in, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		now := time.Now()
		if n <= 0 || err != nil || now.Sub(begin) > 4*time.Second {
			break
		}
		if !first.IsZero() {
			received, last = received+n, now
		} else if now.Sub(begin) > time.Second {
			first = now
		}
	}
	unix.Close(in)
	if err := <-sent; err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return 0, err
	}
	if received == 0 {
		return 0, errors.New("nothing came")
	}
	return off(float64(received)*8/last.Sub(first).Seconds(), float64(rate)*1448/float64(length)), nil
}

// tcp connects a with b. It uses cubic, which is a common default, with a window of about 50 ms
// at the rate: half of the queue's limit.
func (w *wire) tcp(rate int) (in, out int, err error) {
	var heard int
	err = inside(w.b, func() (err error) {
		heard, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, -1, err
	}
	defer unix.Close(heard)
	err = inside(w.a, func() (err error) {
		out, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, -1, err
	}
	limit := &unix.Timeval{Sec: 3}
	err = errors.Join(
		unix.SetsockoptInt(heard, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, rate/8/20),
		unix.SetsockoptInt(out, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20),
		unix.SetsockoptString(out, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic"),
		unix.SetsockoptTimeval(heard, unix.SOL_SOCKET, unix.SO_RCVTIMEO, limit),
		unix.SetsockoptTimeval(out, unix.SOL_SOCKET, unix.SO_SNDTIMEO, limit),
		unix.Bind(heard, &unix.SockaddrInet4{}),
		unix.Listen(heard, 1),
	)
	name, e := unix.Getsockname(heard)
	if err = errors.Join(err, e); err == nil {
		err = unix.Connect(out, &unix.SockaddrInet4{Port: name.(*unix.SockaddrInet4).Port, Addr: [4]byte{10, 0, 0, 2}})
	}
	if err == nil {
		in, _, err = unix.Accept4(heard, unix.SOCK_CLOEXEC)
	}
	if err == nil {
		err = unix.SetsockoptTimeval(in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, limit)
	}
	if err != nil {
		unix.Close(out)
	}
	return in, out, err
}

// Live figures.
var liveRates = []struct {
	rate int
	name string
}{{1e6, "1 Mbit/s"}, {10e6, "10 Mbit/s"}, {100e6, "100 Mbit/s"}, {1e9, "1 Gbit/s"}}

var goodputRates = liveRates[2:]

// on returns a side that runs a measurement on a wire.
func on(get func() (*wire, error), f func(*wire) (float64, error)) side {
	return func() (float64, error) {
		w, err := get()
		if err != nil {
			return 0, err
		}
		return f(w)
	}
}

// handMade returns a side with hand-configured HTB.
func handMade(get func() (*wire, error), rate int, f func(*wire) (float64, error)) side {
	return on(get, func(w *wire) (float64, error) {
		return w.htb(byHand(rate), func() (float64, error) { return f(w) })
	})
}

// gapsBy returns a side that measures the gaps.
func gapsBy(how func([]float64) float64) func(*wire) (float64, error) {
	return func(w *wire) (float64, error) {
		gaps, err := w.gaps()
		if err != nil {
			return 0, err
		}
		return how(gaps), nil
	}
}

// rates returns the figures of a plane at several rates: its error, compared with
// hand-configured HTB. run returns the side of a policy.
func rates(plane string, get func() (*wire, error), run func(policy string, f func(*wire) (float64, error)) side) (figures []figure) {
	for _, l := range liveRates {
		f := func(w *wire) (float64, error) { return w.rateError(l.rate) }
		figures = append(figures, amount(plane+": UDP through a queue of "+l.name+", rate error; beside it HTB by hand", 0.1, 0.01, " %",
			run(queued(l.rate, "l2"), f), handMade(get, l.rate, f)))
	}
	for _, l := range goodputRates {
		figures = append(figures, amount(plane+": TCP through a queue of "+l.name+", goodput off the ideal; beside it HTB by hand", 0.5, 0.1, " %",
			run(queued(l.rate, "l3"), func(w *wire) (float64, error) { return w.goodput(l.rate, 1500) }),
			handMade(get, l.rate, func(w *wire) (float64, error) { return w.goodput(l.rate, 1514) })))
	}
	return figures
}

func pacingFigures(get func() (*wire, error)) []figure {
	run := func(policy string, f func(*wire) (float64, error)) side {
		return on(get, func(w *wire) (float64, error) {
			return w.shape(policy, func() (float64, error) { return f(w) })
		})
	}
	even := func(what string, how func([]float64) float64) figure {
		f := timeRatio("kernel: UDP 1472 B through a queue of 50 Mbit/s against HTB by hand, "+what, 1.1, 1,
			run(queued(evenRate, "l2"), gapsBy(how)), handMade(get, evenRate, gapsBy(how)))
		f.each = " µs"
		return f
	}
	figures := []figure{
		even("standard deviation of gaps", deviation),
		even("p99 of what gaps are off", spread),
	}
	figures = append(figures, rates("kernel", get, run)...)
	// All packets are queued, below the limit.
	const (
		waits  = "classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: 2gbit, limit: 1s}}"
		passes = "classes: [{name: all, green: pass}]"
	)
	cost := func(policy string) side {
		program := sync.OnceValues(func() (func() (float64, error), error) {
			w, err := get()
			if err != nil {
				return nil, err
			}
			p, err := w.program(policy)
			return func() (float64, error) { return costOf(p) }, err
		})
		return func() (float64, error) {
			run, err := program()
			if err != nil {
				return 0, err
			}
			return run()
		}
	}
	over := amount("kernel: program with a queue over the program without, 64 B", math.Inf(1), noAim, " ns", cost(waits), cost(passes))
	over.measured = func(ours, without float64) float64 { return ours - without }
	return append(figures, over)
}

// exactRates are the rates at which departures are compared with the closed form, in bit/s.
var exactRates = []int64{1e3, 9_600, 64e3, 1e6, 9_700_001, 10e6, 33_333_333, 100e6, 123_456_789, 999_999_937, 1e9}

const (
	exactPackets = 1_000_000
	exactBatch   = 512
)

// engine runs packets through a policy.
type engine interface {
	Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error
}

// pipelined is a pipeline as an engine.
type pipelined struct{ *dataplane.Pipeline }

func (p pipelined) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		p.Pipeline.Process(&packets[i], &verdicts[i])
	}
	return nil
}

// departures returns the difference between the rate at which a million packets of IMIX depart
// from a queue and the queue's rate, in percent. All packets arrive at once.
func departures(e engine, rate int64) (float64, error) {
	const begin = int64(1e9)
	all := frames()
	packets, verdicts := make([]dataplane.Packet, exactBatch), make([]dataplane.Verdict, exactBatch)
	bytes := int64(0)              // bytes before the next packet
	exact, last := begin, int64(0) // departures of the last packet
	for i := 0; i < exactPackets; i += exactBatch {
		n := min(exactBatch, exactPackets-i)
		for j := range n {
			f := all[(i+j)%len(all)]
			packets[j] = dataplane.Packet{Data: f, WireLen: len(f), Time: begin, Link: dataplane.LinkEthernet}
			exact = begin + (bytes*8e9+rate-1)/rate // rounded up
			bytes += int64(len(f))
		}
		if err := e.Process(packets[:n], verdicts[:n]); err != nil {
			return 0, err
		}
		for _, v := range verdicts[:n] {
			if v.Done&dataplane.Queued == 0 {
				return 0, fmt.Errorf("at %d bit/s a packet did not wait", rate)
			}
			last = v.Departure
		}
	}
	return off(float64(last-begin), float64(exact-begin)), nil
}

// worst returns the largest error over all rates.
func worst(start func(*dataplane.Policy) (engine, func(), error)) side {
	return func() (float64, error) {
		most := 0.0
		for _, rate := range exactRates {
			q := &dataplane.Queue{Name: "q", Config: queue.Config{Rate: meter.BitRate(rate), Time: 100 * 24 * time.Hour}}
			e, end, err := start(&dataplane.Policy{
				Classes: []dataplane.Class{{Name: "all", Green: &dataplane.Action{Queue: q}}},
				Length:  dataplane.LengthRule{Base: dataplane.L2},
			})
			if err != nil {
				return 0, err
			}
			err1, err := departures(e, rate)
			end()
			if err != nil {
				return 0, err
			}
			most = max(most, err1)
		}
		return most, nil
	}
}

func exactFigures() []figure {
	pipeline := worst(func(p *dataplane.Policy) (engine, func(), error) {
		l, err := dataplane.New(p)
		return pipelined{l}, func() {}, err
	})
	walker := worst(func(p *dataplane.Policy) (engine, func(), error) {
		plan, err := dataplane.Compile(p)
		if err != nil {
			return nil, nil, err
		}
		w, err := kernel.NewWalker(plan, exactBatch)
		if err != nil {
			return nil, nil, err
		}
		return w, w.Close, nil
	})
	return []figure{
		amount("queue: rate error over the closed form, 1 kbit/s to 1 Gbit/s, replay", 0.1, 0.01, " %", pipeline, nil),
		amount("queue: rate error over the closed form, 1 kbit/s to 1 Gbit/s, the kernel's program", 0.1, 0.01, " %", walker, nil),
	}
}
