package storetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Option changes the configuration of a server. By default it uses no password, no TLS and no
// memory limit, and stores nothing on disk.
type Option func(*options)

type options struct {
	password string
	tls      bool
	sentinel bool
	lines    []string
}

// Password protects the default user.
func Password(password string) Option {
	return func(o *options) { o.password = password }
}

// User adds a user with ACL rules, such as "~*", "+@all", "-evalsha". Without rules, all rights are
// granted.
func User(name, password string, rules ...string) Option {
	if rules == nil {
		rules = []string{"~*", "&*", "+@all"}
	}
	return Config(fmt.Sprintf("user %s on >%s %s", name, password, strings.Join(rules, " ")))
}

// TLS makes the server accept only TLS, with a certificate for 127.0.0.1 from
// an authority made for the test; see Server.TLS and Server.CertFile.
func TLS() Option {
	return func(o *options) { o.tls = true }
}

// MaxMemory limits the memory, such as "2mb". Writes beyond it are refused.
func MaxMemory(limit string) Option {
	return Config("maxmemory "+limit, "maxmemory-policy noeviction")
}

// Persist keeps the data across Restart, in an append-only file, synced before each write is
// answered.
func Persist() Option {
	return Config("appendonly yes", "appendfsync always")
}

// Config adds lines to the server's configuration file.
func Config(lines ...string) Option {
	return func(o *options) { o.lines = append(o.lines, lines...) }
}

// lines returns the configuration file.
func (s *Server) lines() string {
	lines := []string{"bind 127.0.0.1", "dir " + s.dir}
	if s.certs == nil {
		lines = append(lines, fmt.Sprint("port ", s.Port))
	} else {
		lines = append(
			lines, "port 0", fmt.Sprint("tls-port ", s.Port),
			"tls-cert-file "+s.certs.path("server.crt"), "tls-key-file "+s.certs.path("server.key"),
			"tls-ca-cert-file "+s.CertFile(), "tls-auth-clients no", "tls-replication yes", "tls-cluster yes",
		)
	}
	if !s.options.sentinel {
		lines = append(lines, `save ""`, "appendonly no", "repl-diskless-sync-delay 0",
			"repl-ping-replica-period 1")
		if p := s.options.password; p != "" {
			lines = append(lines, "requirepass "+p, "masterauth "+p)
		}
	}
	return strings.Join(append(lines, s.options.lines...), "\n") + "\n"
}

// CertFile returns the file with the certificate of the server's authority, in PEM.
func (s *Server) CertFile() string { return s.certs.path("ca.crt") }

// certs are the files of a server with TLS.
type certs struct {
	dir  string
	pool *x509.CertPool
}

func (c *certs) path(name string) string { return filepath.Join(c.dir, name) }

func (c *certs) client() *tls.Config {
	return &tls.Config{RootCAs: c.pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
}

// makeCerts writes ca.crt, server.crt and server.key.
func makeCerts(t testing.TB, dir string) *certs {
	t.Helper()
	c := &certs{dir: dir, pool: x509.NewCertPool()}
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			BasicConstraintsValid: true,
		}
	}
	ca := template(1, "storetest authority")
	ca.IsCA, ca.KeyUsage = true, x509.KeyUsageCertSign
	server := template(2, "storetest server")
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}

	caKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	caDER, err1 := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	der, err2 := x509.CreateCertificate(rand.Reader, server, ca, key.Public(), caKey)
	keyDER, err3 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		name, kind string
		der        []byte
	}{
		{"ca.crt", "CERTIFICATE", caDER},
		{"server.crt", "CERTIFICATE", der},
		{"server.key", "PRIVATE KEY", keyDER},
	} {
		block := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der})
		if err := os.WriteFile(c.path(f.name), block, 0o600); err != nil {
			t.Fatal(err)
		}
		if f.name == "ca.crt" {
			c.pool.AppendCertsFromPEM(block)
		}
	}
	return c
}
