package shared

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server says where a Redis or Valkey server is, and who asks.
//
//	redis://user:password@host:6379/0                      one server
//	rediss://host:6379                                     by TLS
//	unix:///run/redis/redis.sock                           on this host
//	redis://host:26379?master_name=main&addr=other:26379   the primary that Sentinels name
//	redis://host:6379?addr=other:6379                      a cluster
//
// Files have one line, or PEM.
type Server struct {
	URL          string
	PasswordFile string // "" for the URL's password, if any
	CAFile       string // of the server's certificate; "" for the system's
	CertFile     string // of the client
	KeyFile      string
}

// Client is a client of one server, of a primary that Sentinels name, or of a cluster.
type Client = redis.UniversalClient

// Quiet has go-redis log nothing. It logs every failed connection on stderr.
func Quiet() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// String is the address without a user and a password.
func (s Server) String() string {
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme == "" {
		return "the store"
	}
	u.User = nil
	q := u.Query()
	for name := range q {
		if name != "addr" && name != "master_name" {
			q.Del(name)
		}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// timeouts of connections. Calls have deadlines of their own, which a connection that
// takes longer to make does not keep up.
const dialTimeout = 3 * time.Second

// Open returns a client. It does not connect yet. Errors do not show the URL's password.
func Open(s Server) (redis.UniversalClient, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, s.fail(err)
	}
	q := u.Query()
	tlsConfig, err := s.tls(u.Hostname())
	if err != nil {
		return nil, fmt.Errorf("open %v: %w", s, err)
	}
	password, err := s.password()
	if err != nil {
		return nil, fmt.Errorf("open %v: %w", s, err)
	}
	switch {
	case q.Has("master_name"):
		o, err := redis.ParseFailoverURL(s.URL)
		if err != nil {
			return nil, s.fail(err)
		}
		o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled, o.DialTimeout = -1, 1, true, dialTimeout
		o.TLSConfig, o.Password = pick(o.TLSConfig, tlsConfig), cmp.Or(password, o.Password)
		return redis.NewFailoverClient(o), nil
	case q.Has("addr"):
		o, err := redis.ParseClusterURL(s.URL)
		if err != nil {
			return nil, s.fail(err)
		}
		o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled, o.DialTimeout = -1, 1, true, dialTimeout
		o.TLSConfig, o.Password = pick(o.TLSConfig, tlsConfig), cmp.Or(password, o.Password)
		o.ClusterStateReloadInterval = time.Second // by default a minute without a dead primary's slots
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(s.URL)
	if err != nil {
		return nil, s.fail(err)
	}
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled, o.DialTimeout = -1, 1, true, dialTimeout
	o.TLSConfig, o.Password = pick(o.TLSConfig, tlsConfig), cmp.Or(password, o.Password)
	return redis.NewClient(o), nil
}

// fail says what is wrong with the URL, unless it may hold a password.
func (s Server) fail(err error) error {
	why := "it cannot be read; the characters of a password that mean something in a URL, such as @ / : # %, must be percent-encoded"
	if !strings.Contains(s.URL, "@") {
		why = strings.TrimPrefix(err.Error(), "redis: ")
	}
	return fault("URL", "of the store: %s: want redis://user:password@host:port/database, or rediss:// with TLS", why)
}

// pick is the configuration for TLS if the URL asks for it.
func pick(asked, ours *tls.Config) *tls.Config {
	if asked == nil {
		return nil
	}
	ours.InsecureSkipVerify = asked.InsecureSkipVerify
	if asked.ServerName != "" {
		ours.ServerName = asked.ServerName
	}
	return ours
}

func (s Server) tls(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca-file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca-file: %s has no certificate in PEM", s.CAFile)
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

func (s Server) password() (string, error) {
	if s.PasswordFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(s.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("password-file: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line == "" {
		return "", fmt.Errorf("password-file: the first line of %s is empty", s.PasswordFile)
	}
	return strings.TrimSuffix(line, "\r"), nil
}
