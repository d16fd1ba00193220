package control

import (
	"io"
	"log"
	"net/http"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/connections"
)

// Limits of a server. They bound the resources of clients that never send, read or close.
const (
	maxConnections = 32               // of each socket
	headerTime     = 5 * time.Second  // time to send a request's header
	requestTime    = 15 * time.Second // time to send a request
	answerTime     = 60 * time.Second // time from the end of the header until the answer was read
	keepAliveTime  = 60 * time.Second // time between requests of a connection
	headerBytes    = 16 << 10         // size of a request's header
)

// Server serves an API on sockets.
type Server struct {
	shared
	sockets []*Socket
	http    []*http.Server
}

// Serve serves an API. Each socket has connections of its own, so those who may read cannot
// displace those who may write.
func Serve(api API, sockets ...*Socket) *Server {
	s := &Server{shared: newShared(api), sockets: sockets}
	for _, socket := range sockets {
		conns := connections.New(min(maxConnections, connections.Max()))
		server := &http.Server{
			Handler:           s.serve(socket.ReadOnly),
			ReadHeaderTimeout: headerTime,
			ReadTimeout:       requestTime,
			WriteTimeout:      answerTime,
			IdleTimeout:       keepAliveTime,
			MaxHeaderBytes:    headerBytes,
			ConnState:         conns.Changed,
			ConnContext:       withPeer,
			ErrorLog:          log.New(io.Discard, "", 0), // clients could fill the log
		}
		s.http = append(s.http, server)
		go func() { _ = server.Serve(conns.Listener(socket.Listener)) }() // returns after Close
	}
	return s
}

// Close closes all connections and removes the sockets. It waits for no requests but those to detach, which
// may be the reason for the end, and for these at most a second.
func (s *Server) Close() {
	s.awaitLast()
	for i := range s.http {
		_ = s.sockets[i].remove() // while it is open, no other file can have its inode
		_ = s.http[i].Close()
	}
}
