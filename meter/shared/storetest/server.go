package storetest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// programs are the servers run by Each, and how to install them.
var programs = []struct{ name, install string }{
	{"redis", "apt-get install redis-server"},
	{"valkey", "apt-get install valkey-server"},
}

// Server is a running server.
type Server struct {
	Kind string // "redis" or "valkey"
	Addr string // host:port
	Port int

	bus     int // port of the cluster bus
	t       testing.TB
	options options
	dir     string
	certs   *certs // nil: no TLS

	mu     sync.Mutex
	proc   *process // the latest process
	client *redis.Client
}

// Each runs f for every installed server, in parallel subtests.
func Each(t *testing.T, f func(t *testing.T, s *Server), opts ...Option) {
	t.Helper()
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			f(t, start(t, p.name, opts...))
		})
	}
}

// Kinds returns the installed servers, "redis" and "valkey". It skips the test
// if there is none.
func Kinds(t testing.TB) []string {
	t.Helper()
	var kinds []string
	for _, p := range programs {
		if _, err := exec.LookPath(p.name + "-server"); err == nil {
			kinds = append(kinds, p.name)
		}
	}
	if kinds == nil {
		need(t, programs[0].name)
	}
	return kinds
}

// Redis starts a Redis server.
func Redis(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return start(t, "redis", opts...)
}

// Valkey starts a Valkey server.
func Valkey(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return start(t, "valkey", opts...)
}

// Start starts a server of a kind returned by Kinds.
func Start(t testing.TB, kind string, opts ...Option) *Server {
	t.Helper()
	return start(t, kind, opts...)
}

func need(t testing.TB, kind string) {
	t.Helper()
	if _, err := exec.LookPath(kind + "-server"); err == nil {
		return
	}
	missing := "needs a server: "
	for _, p := range programs {
		if p.name == kind {
			missing += p.install
		}
	}
	if os.Getenv("CI") != "" && kind == programs[0].name { // some releases of the system lack the other one
		t.Fatal(missing)
	}
	t.Skip(missing)
}

func start(t testing.TB, kind string, opts ...Option) *Server {
	t.Helper()
	need(t, kind)
	s := &Server{Kind: kind, Port: reserve(t), t: t, dir: t.TempDir()}
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
	for _, o := range opts {
		o(&s.options)
	}
	if s.options.tls {
		s.certs = makeCerts(t, s.dir)
	}
	if slices.Contains(s.options.lines, "cluster-enabled yes") {
		s.bus = reserve(t)
		s.options.lines = append(s.options.lines, fmt.Sprint("cluster-port ", s.bus))
	}
	t.Cleanup(func() {
		if s.client != nil {
			_ = s.client.Close()
		}
		s.Kill()
	})
	s.write()
	s.launch()
	return s
}

// write writes the server's configuration file. A Sentinel rewrites its own.
func (s *Server) write() {
	if err := os.WriteFile(s.config(), []byte(s.lines()), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) config() string { return filepath.Join(s.dir, "server.conf") }

// launch starts the process and waits until it answers.
func (s *Server) launch() {
	s.t.Helper()
	args := []string{s.config()}
	if s.options.sentinel {
		args = append(args, "--sentinel")
	}
	p, err := spawn(s.Kind+"-server", args...)
	if err != nil {
		s.t.Fatalf("start %s: %v", s.Kind, err)
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	Until(s.t, s.Kind+" answers", func() bool {
		select {
		case <-p.ended:
			s.t.Fatalf("%s ended at its start:\n%s", s.Kind, p.output)
		default:
		}
		return s.answers()
	})
}

// answers reports whether the server answers PING with PONG, or with an error other than loading.
func (s *Server) answers() bool {
	conn, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return false
	}
	if s.certs != nil {
		conn = tls.Client(conn, s.certs.client())
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && !strings.HasPrefix(line, "-LOADING")
}

// PID returns the process ID of the running server.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.pid
}

// Output returns the output of the running server.
func (s *Server) Output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.output.String()
}

// Kill ends the server with SIGKILL. When it returns, the port refuses
// connections.
func (s *Server) Kill() {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p == nil {
		return
	}
	select {
	case <-p.ended:
		return
	default:
	}
	_ = syscall.Kill(p.pid, syscall.SIGKILL)
	<-p.ended
}

// Restart ends the server with SIGKILL and starts it again on its port. It
// keeps its data only with the option Persist.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.launch()
}

// Pause stops the server with SIGSTOP: its connections stay open, and nothing
// answers.
func (s *Server) Pause() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	Until(s.t, s.Kind+" stops", func() bool { return s.state() == "T" })
}

// Resume continues a server after Pause.
func (s *Server) Resume() {
	s.t.Helper()
	s.signal(syscall.SIGCONT)
}

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := syscall.Kill(s.PID(), sig); err != nil {
		s.t.Fatalf("%v to %s: %v", sig, s.Kind, err)
	}
}

// state returns the process state from proc(5), such as "S" or "T".
func (s *Server) state() string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID()))
	if err != nil {
		return ""
	}
	_, after, _ := bytes.Cut(stat, []byte(") "))
	return string(after[:1])
}

// Flush deletes all data.
func (s *Server) Flush() {
	s.t.Helper()
	if err := s.Client().FlushAll(context.Background()).Err(); err != nil {
		s.t.Fatalf("FLUSHALL: %v", err)
	}
}

// Client returns a client of the default user, which is closed when the test
// ends. It respects the deadline of a context, and retries like go-redis by
// default, but dials only once each time.
func (s *Server) Client() *redis.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		s.client = redis.NewClient(s.Options())
	}
	return s.client
}

// Options returns the options of Client.
func (s *Server) Options() *redis.Options {
	return &redis.Options{
		Addr: s.Addr, Password: s.options.password, TLSConfig: s.TLS(),
		ContextTimeoutEnabled: true, DialerRetries: 1, DisableIdentity: true,
	}
}

// URL returns the server's URL for its default user.
func (s *Server) URL() string { return s.URLOf("", s.options.password) }

// URLOf returns the server's URL for a user of the option User.
func (s *Server) URLOf(user, password string) string {
	u := url.URL{Scheme: "redis", Host: s.Addr}
	if s.certs != nil {
		u.Scheme = "rediss"
	}
	if password != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

// TLS returns a client configuration trusting the server, or nil without the option TLS.
func (s *Server) TLS() *tls.Config {
	if s.certs == nil {
		return nil
	}
	return s.certs.client()
}

// Info returns one field of INFO, or "" if there is none or the server does not
// answer.
func (s *Server) Info(section, field string) string {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	info, _ := s.Client().Info(ctx, section).Result()
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == field {
			return value
		}
	}
	return ""
}
