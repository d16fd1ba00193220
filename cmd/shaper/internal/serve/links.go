package serve

import (
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/watch"
)

// linkQueue holds the announced changes of interfaces that the supervisor has not handled yet.
type linkQueue struct {
	ready chan struct{} // receives a value if there may be changes

	mu      sync.Mutex
	list    []watch.Link
	unknown bool // some were lost
}

func newLinkQueue() *linkQueue { return &linkQueue{ready: make(chan struct{}, 1)} }

func (q *linkQueue) add(l watch.Link) {
	q.mu.Lock()
	q.list = append(q.list, l)
	q.mu.Unlock()
	q.signal()
}

// lose notes that changes were lost.
func (q *linkQueue) lose() {
	q.mu.Lock()
	q.unknown = true
	q.mu.Unlock()
	q.signal()
}

func (q *linkQueue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns the changes since the last call. unknown is true if some were lost.
func (q *linkQueue) take() (list []watch.Link, unknown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	list, unknown = q.list, q.unknown
	q.list, q.unknown = nil, false
	return list, unknown
}

// listLinks returns all interfaces, without the devices of shapers.
func listLinks() (out []watch.Link, err error) {
	all, err := netlink.LinkList()
	for _, l := range all {
		if a := l.Attrs(); !kernel.IsIFB(l) {
			out = append(out, watch.Link{
				Index: a.Index, Name: a.Name, Loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
			})
		}
	}
	return out, err
}
