package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSocketMode checks the owner and the mode of sockets, whatever the umask is.
func TestSocketMode(t *testing.T) {
	own := fmt.Sprint(os.Getgid())
	for _, umask := range []int{0, 0o022, 0o777} {
		for _, row := range []struct {
			group string
			mode  os.FileMode
		}{{"", 0o600}, {own, 0o660}} {
			path := filepath.Join(t.TempDir(), "s")
			before := unix.Umask(umask)
			s, err := Listen(path, row.group, false)
			unix.Umask(before)
			if err != nil {
				t.Errorf("umask %o: %v", umask, err)
				continue
			}
			info, err := os.Lstat(path)
			if err != nil || info.Mode() != os.ModeSocket|row.mode ||
				int(info.Sys().(*syscall.Stat_t).Gid) != os.Getgid() {
				t.Errorf("umask %o, group %q: got %v, %v; want %v", umask, row.group, info.Mode(), err,
					row.mode)
			}
			Serve(&fakeAPI{}, s).Close()
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("after Close: %v", err)
			}
		}
	}
}

// TestSocketPath checks which files are replaced, and errors.
func TestSocketPath(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	wantError := func(path, want string) {
		t.Helper()
		if s, err := Listen(path, "", false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v, want %q", path, s, err, want)
		}
	}
	first, err := Listen(path, "", false)
	if err != nil {
		t.Fatal(err)
	}
	wantError(path, "another process listens on it")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path, "", false)
	if err != nil {
		t.Fatal(err)
	}
	Serve(&fakeAPI{}, first).Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the previous owner removed the socket: %v", err)
	}
	second.Listener.Close() // as a killed process leaves it
	third, err := Listen(path, "", false)
	if err != nil {
		t.Fatal(err)
	}
	Serve(&fakeAPI{}, third).Close()

	for name, create := range map[string]func(string) error{
		"a file":    func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"a link":    func(p string) error { return os.Symlink("nothing", p) },
		"a fifo":    func(p string) error { return unix.Mkfifo(p, 0o600) },
		"a dir":     func(p string) error { return os.Mkdir(p, 0o700) },
		"datagrams": func(p string) error { _, err := net.ListenPacket("unixgram", p); return err },
	} {
		p := filepath.Join(dir, name)
		if err := create(p); err != nil {
			t.Fatal(err)
		}
		wantError(p, "exists")
		if _, err := os.Lstat(p); err != nil {
			t.Errorf("%s was removed: %v", name, err)
		}
	}
	wantError(filepath.Join(dir, "none", "s"), "no such file or directory")
	wantError(filepath.Join(dir, strings.Repeat("s", 108)), "longer than 107 bytes")
	open := filepath.Join(dir, "open")
	for mode, want := range map[os.FileMode]string{
		0o777: "is writable by other users", 0o777 | os.ModeSticky: "", 0o770: "is writable by other users",
		0o775: "is writable by other users", 0o755: "",
	} {
		if err := os.MkdirAll(open, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(open, mode); err != nil {
			t.Fatal(err)
		}
		if want != "" {
			wantError(filepath.Join(open, "s"), want)
			continue
		}
		s, err := Listen(filepath.Join(open, "s"), "", false)
		if err != nil {
			t.Errorf("%v: %v", mode, err)
			continue
		}
		Serve(&fakeAPI{}, s).Close()
	}
	if os.Geteuid() == 0 {
		for mode, owner := range map[os.FileMode]int{0o700: 65534, 0o777 | os.ModeSticky: 65534} {
			if err := errors.Join(os.Chmod(open, mode), os.Chown(open, owner, -1)); err != nil {
				t.Fatal(err)
			}
			wantError(filepath.Join(open, "s"), "belongs to user 65534")
		}
	}
	if _, err := GroupID("no such group"); err == nil {
		t.Error("found a group that does not exist")
	}
	t.Chdir(dir)
	for _, relative := range []string{"r", "@r", "./r"} {
		s, err := Listen(relative, "", false)
		if err != nil {
			t.Errorf("%s: %v", relative, err)
			continue
		}
		if _, err := os.Lstat(relative); err != nil {
			t.Error(err)
		}
		Serve(&fakeAPI{}, s).Close()
	}
}

// TestServer checks that clients that never send or read leave room for others, and that Close
// does not wait for them.
func TestServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, err := Listen(path, "", false)
	if err != nil {
		t.Fatal(err)
	}
	server := Serve(&fakeAPI{}, s)
	var clients []net.Conn
	for i := range 3 * maxConnections {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		clients = append(clients, conn)
		if i%2 == 0 {
			_, _ = io.WriteString(conn, "POST /v1/changes HTTP/1.1\r\nHost: x\r\nContent-Le")
		}
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial("unix", path)
		},
	}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://x/v1/changes")
	if err != nil || answer.StatusCode != 200 {
		t.Fatalf("got %v, %v", answer, err)
	}
	answer.Body.Close()
	open := 0
	for _, conn := range clients {
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // of open connections
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	if open >= maxConnections {
		t.Errorf("%d connections are open, want less than %d", open, maxConnections)
	}
	closed := make(chan struct{})
	go func() {
		server.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("Close waits")
	}
	if _, err := net.Dial("unix", path); err == nil {
		t.Error("the socket is still there")
	}
}
