package storetest

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Direction is one direction through a proxy, or both.
type Direction int

const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// String returns to-server, to-client or both.
func (d Direction) String() string {
	switch d {
	case ToServer:
		return "to-server"
	case ToClient:
		return "to-client"
	case Both:
		return "both"
	}
	return fmt.Sprintf("Direction(%d)", int(d))
}

// TCPProxy forwards connections to a server, and can behave like a broken
// network. Its methods are safe for concurrent use, and apply to open
// connections and to new ones.
type TCPProxy struct {
	Addr string // listening address, host:port

	listener net.Listener

	mu       sync.Mutex
	target   string
	changed  *sync.Cond
	stalled  Direction
	cut      Direction
	refusing bool
	closed   bool
	delay    [Both]time.Duration // by Direction
	links    map[*link]bool
	accepted int
	bytes    [Both]int64 // by Direction
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	lossy          bool // bytes of it were discarded
}

// Proxy starts a proxy for a server's address.
func Proxy(t testing.TB, addr string) *TCPProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &TCPProxy{Addr: listener.Addr().String(), target: addr, listener: listener, links: map[*link]bool{}}
	p.changed = sync.NewCond(&p.mu)
	var done sync.WaitGroup
	done.Go(func() { p.accept(&done) })
	t.Cleanup(func() {
		_ = listener.Close()
		p.change(func() { p.closed = true })
		p.Break()
		done.Wait()
	})
	return p
}

// Stall holds all bytes of a direction until Heal, like a network with losses for a while: all
// bytes arrive in the end, but late.
func (p *TCPProxy) Stall(d Direction) { p.change(func() { p.stalled |= d }) }

// Cut discards all bytes of a direction until Heal. Then connections with lost bytes are closed.
func (p *TCPProxy) Cut(d Direction) { p.change(func() { p.cut |= d }) }

// Delay delays the bytes of a direction.
func (p *TCPProxy) Delay(d Direction, by time.Duration) {
	p.change(func() {
		for _, one := range []Direction{ToServer, ToClient} {
			if d&one != 0 {
				p.delay[one] = by
			}
		}
	})
}

// Refuse closes all connections, and new ones at once, until Heal.
func (p *TCPProxy) Refuse() {
	p.change(func() { p.refusing = true })
	p.Break()
}

// Break closes all connections. New ones work.
func (p *TCPProxy) Break() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Redirect closes all connections. New ones go to another server.
func (p *TCPProxy) Redirect(addr string) {
	p.change(func() { p.target = addr })
	p.Break()
}

// Heal ends Stall, Cut, Delay and Refuse.
func (p *TCPProxy) Heal() {
	p.change(func() {
		p.stalled, p.cut, p.refusing, p.delay = 0, 0, false, [Both]time.Duration{}
		for l := range p.links {
			if l.lossy {
				l.close()
			}
		}
	})
}

// Accepted returns the number of connections accepted.
func (p *TCPProxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Bytes returns the number of bytes received in a direction.
func (p *TCPProxy) Bytes(d Direction) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes[d]
}

func (p *TCPProxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.changed.Broadcast()
}

func (p *TCPProxy) accept(done *sync.WaitGroup) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.accepted++
		refused, target := p.refusing || p.closed, p.target
		p.mu.Unlock()
		if refused {
			_ = client.Close()
			continue
		}
		done.Go(func() { p.connect(client, target) })
	}
}

// connect forwards one connection to a server until either side closes it.
func (p *TCPProxy) connect(client net.Conn, target string) {
	server, err := net.DialTimeout("tcp", target, 10*time.Second)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	p.links[l] = true
	if p.closed || p.refusing || p.target != target {
		l.close()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pass(l, ToServer, server, client) })
	both.Go(func() { p.pass(l, ToClient, client, server) })
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// chunk is the data of one read.
type chunk struct {
	data []byte
	due  time.Time
}

// pass copies one direction of a connection. A delayed chunk does not delay
// reading the next.
func (p *TCPProxy) pass(l *link, d Direction, to io.Writer, from io.Reader) {
	defer l.close()
	chunks := make(chan chunk, 1024)
	var writer sync.WaitGroup
	writer.Go(func() {
		for c := range chunks {
			time.Sleep(time.Until(c.due))
			if !p.mayPass(l, d) {
				continue
			}
			if _, err := to.Write(c.data); err != nil {
				l.close()
			}
		}
	})
	for {
		data := make([]byte, 32<<10)
		n, err := from.Read(data)
		if err != nil {
			break
		}
		p.mu.Lock()
		due := time.Now().Add(p.delay[d])
		p.bytes[d] += int64(n)
		p.mu.Unlock()
		chunks <- chunk{data[:n], due}
	}
	close(chunks)
	writer.Wait()
}

// mayPass waits until a direction is not stalled, and reports whether its bytes
// pass.
func (p *TCPProxy) mayPass(l *link, d Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.stalled&d != 0 && !p.closed {
		p.changed.Wait()
	}
	if p.cut&d != 0 || p.closed {
		l.lossy = true
		return false
	}
	return true
}
