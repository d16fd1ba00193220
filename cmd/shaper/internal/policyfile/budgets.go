package policyfile

import (
	"net/url"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"go.yaml.in/yaml/v3"
)

// storeSchemes are the URL schemes of servers.
var storeSchemes = []string{"redis", "rediss", "unix"}

// budget reads the key share of a meter.
func (l *loader) budget(m *dataplane.Meter, n *yaml.Node) {
	b := &dataplane.Budget{}
	m.Budget = b
	l.keepPlaces(b, n)
	store := false
	if !l.mapping(n, "share", keys{
		{"budget", func(n *yaml.Node) { b.Name, _ = l.text(n, "budget") }},
		{"store", func(n *yaml.Node) { store = true; l.store(&b.Address, n) }},
		{"count", func(n *yaml.Node) { b.Once = l.second(n, "count of a budget", "each", "once") }},
		{"interval", func(n *yaml.Node) { b.Interval, _ = parsed(l, n, "interval", ParseDuration) }},
		{"rescue", func(n *yaml.Node) { b.Rescue, _ = parsed(l, n, "rescue", parseShare) }},
		{"weight", func(n *yaml.Node) { b.Weight = l.positive(n, "weight", dataplane.MaxWeight) }},
		{"hosts", func(n *yaml.Node) { b.Hosts = l.positive(n, "hosts", dataplane.MaxHosts) }},
	}) {
		return
	}
	switch {
	case b.Name == "":
		l.fail(n, "share needs the name of a budget, such as budget: customer-42")
	case !store:
		l.fail(n,
			"share needs a store: host for the interfaces of this host, or the URL of a server, such as redis://10.0.0.1:6379")
	case b.OnHost():
		for _, key := range []string{"hosts", "interval", "rescue", "weight"} {
			if value := lookup(n, key); value != nil {
				l.fail(target(value), "%s is only for a budget on a server, not for store: host", key)
			}
		}
	}
}

// store reads host, a URL, or a mapping with a URL and files.
func (l *loader) store(s *dataplane.Address, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		l.storeURL(s, n)
		return
	}
	file := func(what string, to *string) func(*yaml.Node) {
		return func(n *yaml.Node) { *to, _ = l.text(n, what) }
	}
	if !l.mapping(n, "store", keys{
		{"url", func(n *yaml.Node) { l.storeURL(s, n) }},
		{"password-file", file("password-file", &s.PasswordFile)},
		{"ca-file", file("ca-file", &s.CAFile)},
		{"cert-file", file("cert-file", &s.CertFile)},
		{"key-file", file("key-file", &s.KeyFile)},
	}) {
		return
	}
	switch {
	case s.URL == "":
		l.fail(n, "store needs a url, such as url: rediss://10.0.0.1:6379")
	case (s.CertFile == "") != (s.KeyFile == ""):
		l.fail(n, "cert-file and key-file go together")
	case (s.CertFile != "" || s.CAFile != "") && !strings.HasPrefix(s.URL, "rediss:"):
		l.fail(n, "certificates need a rediss:// URL")
	}
}

// storeURL reads host or a URL. Errors do not show the URL, because it may have a password.
func (l *loader) storeURL(s *dataplane.Address, n *yaml.Node) {
	text, ok := l.text(n, "store")
	if !ok || text == "host" {
		return
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "" || u.Host == "" && u.Path == "":
		l.fail(n, "store is neither host nor a URL such as redis://10.0.0.1:6379")
	case !slices.Contains(storeSchemes, u.Scheme):
		l.fail(n, "unknown store %q: want redis://, rediss:// (TLS) or unix://", u.Scheme)
	default:
		s.URL = text
	}
}

// positive reads a number between 1 and most.
func (l *loader) positive(n *yaml.Node, what string, most int) int {
	v, ok := parsed(l, n, what, parseInt)
	if ok && (v < 1 || v > most) {
		l.fail(n, "%s: %d is not between 1 and %d", what, v, most)
	}
	return v
}
