package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/safedir"
)

// maxPath is the length of a socket's path that every program can use, bytes.
const maxPath = 107

// Socket is a unix socket in the file system.
type Socket struct {
	net.Listener
	ReadOnly bool // only GET is allowed

	path          string
	device, inode uint64
}

// GroupID returns the ID of a group, given by name or number.
func GroupID(group string) (int, error) {
	if n, err := strconv.ParseUint(group, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("there is no group %q", group)
	}
	return strconv.Atoi(g.Gid)
}

// Listen creates a socket for this process's user only, or also for the members of a group ("":
// none). It replaces a socket without a listener. The error is not about connections: nobody can
// connect before the file has its permissions.
func Listen(path, group string, readOnly bool) (s *Socket, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("control socket %s: %w", path, err)
		}
	}()
	if strings.HasPrefix(path, "@") {
		path = "./" + path // otherwise it would be an abstract socket, without permissions
	}
	if len(path) > maxPath {
		return nil, fmt.Errorf("the path is longer than %d bytes", maxPath)
	}
	// nobody else can replace the socket
	dir, err := safedir.Open(filepath.Dir(path), safedir.Shared|safedir.Link)
	if err != nil {
		return nil, err
	}
	dir.Close()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close() // FileListener duplicates it
	s = &Socket{path: path, ReadOnly: readOnly}
	if err := s.bind(fd, group); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	if s.Listener, err = net.FileListener(file); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// bind creates the file, gives it its permissions, and then lets clients connect.
func (s *Socket) bind(fd int, group string) error {
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: s.path}); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Lstat(s.path, &stat); err != nil {
		return err
	}
	s.device, s.inode = stat.Dev, stat.Ino
	mode := os.FileMode(0o600)
	if group != "" {
		gid, err := GroupID(group)
		if err != nil {
			return err
		}
		if err := os.Lchown(s.path, -1, gid); errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("this user is not in group %s, and has no CAP_CHOWN", group)
		} else if err != nil {
			return err
		}
		mode = 0o660
	}
	if err := os.Chmod(s.path, mode); err != nil {
		return err
	}
	return unix.Listen(fd, unix.SOMAXCONN)
}

// removeStale removes a socket without a listener. Any other file is an error.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return errors.New("the file exists and is not a socket")
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
		return errors.New("another process listens on it")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("it exists, and perhaps another process listens on it: %w", err)
	}
	return os.Remove(path)
}

// remove removes the file unless another process replaced it.
func (s *Socket) remove() error {
	var stat unix.Stat_t
	if s.inode == 0 || unix.Lstat(s.path, &stat) != nil || stat.Dev != s.device || stat.Ino != s.inode {
		return nil
	}
	return os.Remove(s.path)
}

// peerKey is the key of the peer's user ID in the context of a connection.
type peerKey struct{}

// withPeer adds the user of the process at the other end of a connection.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	if peer := live.Peer(conn); peer != nil {
		ctx = context.WithValue(ctx, peerKey{}, int(peer.Uid))
	}
	return ctx
}

// userOf returns the name of the peer's user, or its ID if it has none; "" if it is unknown.
func userOf(ctx context.Context) string {
	id, ok := ctx.Value(peerKey{}).(int)
	if !ok {
		return ""
	}
	return live.UserName(id)
}
