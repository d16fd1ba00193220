package shared

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Rights are the ACL rules needed on the server by the user of an Agent:
//
//	ACL SETUSER shaper on >password ~{shaper:*}:lease +evalsha +eval …
//
// Without +info an agent does not notice a failover, and without +info or +wait it uses increases
// that no replica has. A database other than 0 needs +select, a cluster +cluster|shards and
// +cluster|slots. The functions for operators also need +scan and +eval_ro.
const Rights = "~{shaper:*}:lease +evalsha +eval +time +info +wait +hmget +hget +hset +hdel +hgetall +persist +pexpire"

const (
	leaseRights   = "ACL SETUSER … " + Rights
	operateRights = leaseRights + " +scan +eval_ro"
)

// trouble lists the error replies of a server that cannot serve, each with its
// remedy. A server without a remedy recovers automatically.
var trouble = []struct{ prefix, what, remedy string }{
	{
		"WRONGPASS", "wrong user name or password",
		"check the user name and the password, in the URL or in the password file",
	},
	{
		"NOAUTH", "the server requires a password",
		"set a user name and a password, in the URL or in a password file",
	},
	{
		"Protocol error: unauthenticated", "the server requires a password",
		"set a user name and a password, in the URL or in a password file",
	},
	{"NOPERM", lacksRight, ""},
	{"OOM", "the server's memory is full", "raise maxmemory of the server"},
	{"MISCONF", "the server cannot save its data", "free disk space, or check the server's log"},
	{
		"READONLY", "the server is a read-only replica",
		"connect to the primary, or through Sentinels (master_name)",
	},
	{"MOVED", nodeOfCluster, addNode},
	{"ASK", nodeOfCluster, addNode},
	{"CROSSSLOT", nodeOfCluster, addNode},
	{"NOREPLICAS", "the server has too few replicas", "check min-replicas-to-write of the server"},
	{"max number of clients", "the server has too many clients", "raise maxclients of the server"},
	{"LOADING", "the server is loading its data", ""},
	{"MASTERDOWN", "the server lost its primary", ""},
	{"CLUSTERDOWN", "the cluster is down", ""},
	{"TRYAGAIN", "the cluster moves the slot", ""},
	{"BUSY", "the server is busy with a script", ""},
}

const (
	lacksRight    = "the user lacks a permission"
	nodeOfCluster = "the server is a node of a cluster"
	addNode       = "add another node to the URL, ?addr=host:port, or use redis.NewClusterClient"
)

// troubleOf returns the index of an error's trouble, or -1.
func troubleOf(err error) int {
	for i := range trouble {
		if redis.HasErrorPrefix(err, trouble[i].prefix) {
			return i
		}
	}
	return -1
}

// Trouble is an error of a server or of the connection to it.
type Trouble struct {
	What   string // description
	Remedy string // "" if it may pass by itself, or is unknown
	Err    error  // error of the server or the network
}

func (t *Trouble) Error() string {
	// A server's error ends with the position in a script.
	first := firstOf(t.Err)
	if at := strings.LastIndex(first, " script: "); at > 0 && strings.Contains(first[at:], "@user_script") {
		first = first[:at]
	}
	text := t.What
	if !strings.Contains(first, t.What) {
		text += " (" + printable(strings.TrimSpace(first)) + ")"
	}
	if t.Remedy != "" {
		text += ": " + t.Remedy
	}
	return text
}

// firstOf returns the first line of an error. A server's may have several.
func firstOf(err error) string {
	first, _, _ := strings.Cut(err.Error(), "\n")
	return first
}

// printable returns a text from outside, such as a server's error, with escapes for characters a
// terminal would obey. It is cut to maxText bytes.
func printable(text string) string {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	quoted := strconv.Quote(text)
	quoted = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	return strings.ReplaceAll(quoted, `\\`, `\`)
}

const maxText = 256 // bytes

// plainError is an error whose text may come from outside.
type plainError struct{ err error }

func (e *plainError) Error() string { return printable(firstOf(e.err)) }
func (e *plainError) Unwrap() error { return e.err }

func (t *Trouble) Unwrap() error { return t.Err }

// explain describes an error of a server or a client with its remedy, in one printable line. It
// keeps the text of other errors. acl is the command to grant the user its rights.
func explain(err error, acl string) error {
	if i := troubleOf(err); i >= 0 {
		t := &Trouble{trouble[i].what, trouble[i].remedy, err}
		if t.What == lacksRight {
			t.Remedy = acl
		}
		return t
	}
	var answer redis.Error
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var header tls.RecordHeaderError
	var handshake *handshakeError
	var network *net.OpError
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &answer) &&
		(strings.Contains(answer.Error(), "user executing the script") ||
			strings.Contains(answer.Error(), "ACL failure")):
		return &Trouble{lacksRight, acl, err}
	case errors.As(err, &answer):
		return &Trouble{"the script failed", "", err}
	case errors.As(err, &authority):
		return &Trouble{"the server's certificate is from an unknown authority", "set ca-file", err}
	case errors.As(err, &host):
		return &Trouble{
			"the server's certificate is for another name", "use a name from the certificate in the URL", err,
		}
	case errors.As(err, &invalid):
		return &Trouble{"the server's certificate is not valid", "renew it, or check the clocks", err}
	case errors.As(err, &network) && network.Op == "remote error": // a TLS alert
		return &Trouble{
			"the server refuses TLS", "if it requires a client certificate, set cert-file and key-file", err,
		}
	case errors.As(err, &header), errors.As(err, &handshake) && errors.Is(err, context.DeadlineExceeded):
		return &Trouble{"the server does not speak TLS", "use redis:// in the URL", err}
	case errors.As(err, &dns):
		return &Trouble{"the server's name has no address", "check the URL", err}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &Trouble{"connection refused", "check the URL, and that the server runs", err}
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return &Trouble{
			"the server closed the connection", "if it requires TLS, use rediss:// in the URL", err,
		}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &Trouble{"no answer in time", "", err}
	}
	if text := err.Error(); printable(firstOf(err)) != text {
		return &plainError{err}
	}
	return err
}
