package shared

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Server is the address of a Redis or Valkey server, with credentials.
//
//	redis://user:password@host:6379/0                      one server, database 0
//	rediss://host:6379                                     with TLS
//	unix://user:password@/run/redis/redis.sock?db=0        on this host
//	redis://host:26379?master_name=main&addr=other:26379   the primary named by Sentinels
//	redis://host:6379?addr=other:6379                      a cluster, by some of its nodes
//
// The user and the password are those of the server. Those of Sentinels are
// sentinel_username and sentinel_password. With skip_verify=true, TLS accepts any certificate. Password files
// have one line, the others are PEM.
type Server struct {
	URL          string
	PasswordFile string // "": the URL's password, if any
	CAFile       string // authority of the server's certificate; "": the system's
	CertFile     string // client certificate
	KeyFile      string
}

// Client is a client of one server, of a primary named by Sentinels, or of a
// cluster.
type Client = redis.UniversalClient

// String returns the address without user and password.
func (s Server) String() string {
	u, err := url.Parse(s.URL)
	if err != nil || !slices.Contains(schemes, u.Scheme) || u.Opaque != "" {
		return "the store"
	}
	shown, q := url.Values{}, u.Query()
	for _, name := range []string{"addr", "master_name"} {
		if q.Has(name) {
			shown[name] = q[name]
		}
	}
	query := strings.ReplaceAll(shown.Encode(), "%3A", ":")
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawQuery: query}).String()
}

var (
	schemes    = []string{"redis", "rediss", "unix"}
	parameters = []string{
		"addr", "master_name", "db", "skip_verify", "sentinel_username", "sentinel_password",
	}
)

// dialTimeout limits the time to connect. Calls have their own deadlines. A
// connection that takes longer than a call is used by a later one. Tests give a
// busy machine more.
var dialTimeout = 2 * time.Second

// noConn is a failed connection. It hides the error from go-redis, which after
// several failures would retry only once a second.
type noConn struct{ err error }

func (c noConn) Read([]byte) (int, error)       { return 0, c.err }
func (c noConn) Write([]byte) (int, error)      { return 0, c.err }
func (noConn) Close() error                     { return nil }
func (noConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (noConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (noConn) SetDeadline(time.Time) error      { return nil }
func (noConn) SetReadDeadline(time.Time) error  { return nil }
func (noConn) SetWriteDeadline(time.Time) error { return nil }

// dial connects, with TLS if c is not nil.
func dial(ctx context.Context, network, addr string, c *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil || c == nil {
		return conn, err
	}
	c = c.Clone()
	c.ServerName, _, _ = net.SplitHostPort(addr)
	t := tls.Client(conn, c)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, &handshakeError{addr, err}
	}
	return t, nil
}

// handshakeError is an error of the TLS handshake.
type handshakeError struct {
	addr string
	err  error
}

func (e *handshakeError) Error() string { return "TLS with " + e.addr + ": " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// Open returns a client. It does not connect yet. Errors contain no passwords.
func Open(s Server) (redis.UniversalClient, error) {
	o, err := s.options()
	if err != nil {
		return nil, fmt.Errorf("open %v: %w", s, err)
	}
	switch {
	case o.MasterName != "":
		return redis.NewFailoverClient(o.Failover()), nil
	case o.IsClusterMode:
		c := o.Cluster()
		// decisions of a Backend follow MOVED and ASK with it; an Agent does so itself
		c.MaxRedirects = 3
		c.ClusterStateReloadInterval = time.Second // time to notice a failover; the default is one minute
		return redis.NewClusterClient(c), nil
	}
	return redis.NewClient(o.Simple()), nil
}

// A program that imports this package gets no log output of go-redis. Its
// errors are in the results of calls, and it has no logger per client.
func init() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// options returns the options of a client that tries each call once, on one
// connection.
func (s Server) options() (*redis.UniversalOptions, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, errors.New(
			"the URL cannot be parsed: in a password, write @ / : # ? % as %40 %2F %3A %23 %3F %25")
	}
	if !slices.Contains(schemes, u.Scheme) || u.Opaque != "" {
		return nil, errors.New("the URL does not start with redis://, rediss:// or unix://")
	}
	q := u.Query()
	for name, values := range q {
		if !slices.Contains(parameters, name) {
			return nil, fmt.Errorf("unknown URL parameter %q", name)
		}
		if name != "addr" && len(values) > 1 {
			return nil, fmt.Errorf("duplicate URL parameter %q", name)
		}
	}
	o := &redis.UniversalOptions{
		MasterName: q.Get("master_name"), SentinelUsername: q.Get("sentinel_username"),
		SentinelPassword: q.Get("sentinel_password"), IsClusterMode: q.Has("addr"),
		Username: u.User.Username(), MaxRetries: -1, MaxRedirects: -1, ContextTimeoutEnabled: true,
		DisableIdentity: true, DialerRetries: 1, DialTimeout: dialTimeout, MaxConcurrentDials: 1,
		PipelinePoolSize:         -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	o.Password, _ = u.User.Password()
	db := q.Get("db")
	if u.Scheme == "unix" {
		o.Addrs = []string{u.Path}
	} else {
		if u.Hostname() == "" {
			return nil, errors.New("the URL has no host")
		}
		o.Addrs = []string{net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "6379"))}
		db = cmp.Or(strings.Trim(u.Path, "/"), db)
	}
	for _, addr := range q["addr"] {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil, fmt.Errorf("addr=%s is not host:port", addr)
		}
		o.Addrs = append(o.Addrs, addr)
	}
	if o.DB, err = strconv.Atoi(cmp.Or(db, "0")); err != nil || o.DB < 0 {
		return nil, fmt.Errorf("database %q is not a number", db)
	}
	if s.PasswordFile != "" {
		if o.Password, err = firstLine(s.PasswordFile); err != nil {
			return nil, fmt.Errorf("password-file: %w", err)
		}
	}
	if u.Scheme == "rediss" {
		o.TLSConfig, err = s.tls()
		if err != nil {
			return nil, err
		}
		o.TLSConfig.InsecureSkipVerify = q.Get("skip_verify") == "true"
	}
	c := o.TLSConfig
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr, c)
		if err != nil {
			return noConn{fmt.Errorf("connect: %w", err)}, nil // go-redis unwraps it once
		}
		return newCheckedConn(conn), nil
	}
	return o, nil
}

// tls returns the TLS configuration.
func (s Server) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca-file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca-file: %s has no PEM certificate", s.CAFile)
		}
	}
	if s.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert-file and key-file: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

func firstLine(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	line = strings.TrimSuffix(line, "\r")
	if line == "" {
		return "", fmt.Errorf("the first line of %s is empty", file)
	}
	return line, nil
}
