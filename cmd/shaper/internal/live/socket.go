package live

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// serve lets processes of root and of this process's user call methods at an abstract
// socket. Each connection has methods of its own. The name belongs to the network namespace and ends with the
// process.
func serve(name string, session func() methods) (net.Listener, error) {
	listener, err := net.Listen("unix", name)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if trusted(conn, 0) {
				go session().serve(conn)
			} else {
				conn.Close()
			}
		}
	}()
	return listener, nil
}

// trusted reports whether the other end of a socket belongs to root, to this process's user, or to
// the process with the given ID (0: none). It must be checked because anybody may create a socket
// of that name.
func trusted(conn net.Conn, process int) bool {
	peer := Peer(conn)
	return peer != nil &&
		(peer.Uid == 0 || int(peer.Uid) == os.Geteuid() || process != 0 && int(peer.Pid) == process)
}

// Peer returns the process at the other end of a unix socket, nil if it is unknown.
func Peer(conn net.Conn) (peer *unix.Ucred) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return nil
	}
	if e := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil ||
		err != nil {
		return nil
	}
	return peer
}

// connect connects to a serving process. It returns nil if there is none, or if it is not trusted.
func connect(name string, process int) *caller {
	conn, err := net.Dial("unix", name)
	if err != nil {
		return nil
	}
	if !trusted(conn, process) {
		conn.Close()
		return nil
	}
	return newCaller(conn)
}
