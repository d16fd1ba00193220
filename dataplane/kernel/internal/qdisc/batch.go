package qdisc

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// request is a change of a qdisc or class.
type request struct {
	object         *Object
	message, flags int
}

// adding is the request of Object.add.
func adding(o *Object, flags int) request {
	message := unix.RTM_NEWQDISC
	if o.Class {
		message = unix.RTM_NEWTCLASS
	}
	return request{o, message, unix.NLM_F_CREATE | flags}
}

// inFlight is the number of requests sent before the kernel's answers to them are read. All answers fit
// into the default buffer of a socket.
const inFlight = 64

// sendAll sends requests in order, and returns the error of the first one that failed. Later ones may
// have been executed too. It is far faster than Object.send for each.
func sendAll(index int, list []request) error {
	if len(list) == 0 {
		return nil
	}
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer s.Close()
	if err := s.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	for some := range slices.Chunk(list, inFlight) {
		sequence := map[uint32]int{}
		for i, r := range some {
			message := r.object.request(r.message, r.flags, index)
			sequence[message.Seq] = i
			if err := s.Send(message); err != nil {
				return fmt.Errorf("%v: %w", r.object, err)
			}
		}
		failed := make([]error, len(some))
		for len(sequence) > 0 {
			answers, _, err := s.Receive()
			if err != nil {
				return fmt.Errorf("netlink: %w", err)
			}
			for _, a := range answers {
				i, ours := sequence[a.Header.Seq]
				if !ours || a.Header.Type != unix.NLMSG_ERROR || len(a.Data) < 4 {
					continue
				}
				delete(sequence, a.Header.Seq)
				if code := int32(binary.NativeEndian.Uint32(a.Data)); code != 0 {
					failed[i] = unix.Errno(-code)
				}
			}
		}
		for i, err := range failed {
			if err != nil {
				return cause.Of(fmt.Errorf("%v: %w", some[i].object, err))
			}
		}
	}
	return nil
}
