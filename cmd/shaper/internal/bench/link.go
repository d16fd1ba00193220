package main

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// openUDP opens a UDP socket in a namespace, with a buffer for all packets of a round.
func openUDP(ns *nettest.Namespace) (fd int, err error) {
	err = doIn(ns, func() (err error) {
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

// errBehind reports that the queue was empty at times.
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
	out, err := openUDP(w.a)
	if err != nil {
		return nil, err
	}
	defer unix.Close(out)
	in, err := openUDP(w.b)
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
	err = offerPackets(out, rate, segments)
	<-done
	if err = errors.Join(err, wrong); err == nil && (len(at) < 100 || at[0] == at[len(at)-1]) {
		err = fmt.Errorf("only %d packets arrived", len(at))
	}
	return at, err
}

// offerPackets sends for pacedTime. It sends the first 20 ms at once, to keep the queue from ever
// running empty.
func offerPackets(fd, rate, segments int) error {
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

// goodput compares TCP's goodput with the rate less headers, in percent. length is the metered
// length of a full packet. iperf3 is not used, because it would count the backlog at the end
// for one side or the other.
func (w *wire) goodput(rate, length int) (float64, error) {
	in, out, err := w.connectTCP(rate)
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
		return 0, errors.New("no data arrived")
	}
	return percentOff(float64(received)*8/last.Sub(first).Seconds(), float64(rate)*1448/float64(length)), nil
}

// connectTCP connects a with b. It uses cubic, which is a common default, with a window of about 50 ms
// at the rate: half of the queue's limit.
func (w *wire) connectTCP(rate int) (in, out int, err error) {
	var heard int
	err = doIn(w.b, func() (err error) {
		heard, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, -1, err
	}
	defer unix.Close(heard)
	err = doIn(w.a, func() (err error) {
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
		err = unix.Connect(out,
			&unix.SockaddrInet4{Port: name.(*unix.SockaddrInet4).Port, Addr: [4]byte{10, 0, 0, 2}})
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
