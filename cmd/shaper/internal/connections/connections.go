// Package connections bounds the open connections of an HTTP server. Otherwise clients which never
// send, read or close could use up the descriptors of the process.
package connections

import (
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of connections.
const (
	connectionsMax = 64
	// time to send a request, before a newer connection may replace this one
	connectionGrace = 25 * time.Millisecond
	responseGrace   = time.Second // time to read the response, likewise
)

// Max returns 64, or a quarter of the descriptors allowed to the process. Shaping needs descriptors
// too.
func Max() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1
	}
	return int(min(connectionsMax, max(1, limit.Cur/4)))
}

// Connections are the open connections of an HTTP server, oldest change of state first. At the
// limit, a new connection replaces the oldest one that is idle or has not sent a complete request.
// If there is none, it replaces the oldest one whose response takes longer than responseGrace.
type Connections struct {
	max int

	mu    sync.Mutex
	open  []connection
	ended chan struct{} // holds an element after a connection was closed
}

type connection struct {
	net.Conn
	busy  bool      // a request was received and its response is not complete
	since time.Time // last change of state
}

// New returns Connections with at most limit of them open.
func New(limit int) *Connections {
	return &Connections{max: limit, ended: make(chan struct{}, 1)}
}

// Changed is the server's ConnState callback. It moves an open connection to the end.
func (c *Connections) Changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.open, func(o connection) bool { return o.Conn == conn })
	if i < 0 {
		return // it was replaced
	}
	c.open = slices.Delete(c.open, i, i+1)
	switch state {
	case http.StateClosed:
		select {
		case c.ended <- struct{}{}:
		default:
		}
	default:
		c.open = append(c.open, connection{conn, state == http.StateActive, time.Now()})
	}
}

// admit adds a connection as soon as there is room.
func (c *Connections) admit(conn net.Conn) {
	for {
		wait := c.try(conn)
		if wait <= 0 {
			return
		}
		select {
		case <-c.ended:
		case <-time.After(wait):
		}
	}
}

// try adds a connection, or returns the time until another one may be replaced.
func (c *Connections) try(conn net.Conn) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.max {
		i, wait := c.victim()
		if wait > 0 {
			return wait
		}
		victim := c.open[i].Conn
		c.open = slices.Delete(c.open, i, i+1)
		if t, ok := victim.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // unsent data would stay in the kernel's memory
		}
		_ = victim.Close() // the server notices
	}
	c.open = append(c.open, connection{conn, false, time.Now()})
	return 0
}

// victim returns the index of the connection to replace. If no connection may be replaced yet,
// it returns the time until one may.
func (c *Connections) victim() (i int, wait time.Duration) {
	wait = math.MaxInt64
	for _, busy := range []bool{false, true} {
		grace := connectionGrace
		if busy {
			grace = responseGrace
		}
		i := slices.IndexFunc(c.open, func(o connection) bool { return o.busy == busy })
		if i < 0 {
			continue
		}
		if wait = min(wait, grace-time.Since(c.open[i].since)); wait <= 0 {
			return i, 0
		}
	}
	return 0, wait
}

// Listener returns a listener which accepts connections within the limit.
func (c *Connections) Listener(l net.Listener) net.Listener { return &limitedListener{l, c} }

// limitedListener accepts connections within the limit of connections.
type limitedListener struct {
	net.Listener
	conns *Connections
}

func (l *limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.conns.admit(conn)
	}
	return conn, err
}
