package metrics

import (
	"context"
	"fmt"
	"html"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/connections"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
)

// Limits of the metrics server. They bound the resources of clients which never send, read or
// close.
const (
	requestTime    = 5 * time.Second  // time to send a request
	responseTime   = 10 * time.Second // time to produce and read a response, including publishIn
	keepAliveTime  = 5 * time.Second  // time between requests of a connection
	headerBytes    = 8 << 10          // size of a request's header
	listenInterval = 3 * time.Second  // time between attempts to listen
)

// Address is the value of --metrics.
type Address struct{ host, port string }

// ParseAddress reads the value of --metrics. Without a host it is a loopback address.
func ParseAddress(text string) (Address, error) {
	host, port, err := net.SplitHostPort(text)
	if err == nil && port != "" {
		_, err = net.DefaultResolver.LookupPort(context.Background(), "tcp", port)
	}
	if err != nil || port == "" || !validHost(host) {
		return Address{}, fmt.Errorf("--metrics %q: want an address such as 127.0.0.1:9190", text)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return Address{host, port}, nil
}

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
)

// validHost reports whether a host is empty, an IP address or a possible name.
func validHost(host string) bool {
	return host == "" || isIP(host) || strings.Trim(host, letters+digits+".-_") == "" &&
		strings.ContainsAny(host, letters)
}

// isIP reports whether a host is an IP address. Its zone may only be a usual interface name.
func isIP(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && strings.Trim(a.Zone(), letters+digits+".-_@") == ""
}

// metricsServer serves a board over HTTP. It never reads a shaper.
type metricsServer struct {
	http http.Server
	stop context.CancelFunc
}

// Serve serves a board at an address and prints the URL on out. If the address cannot be
// used, it prints a warning and retries, because shaping must not depend on metrics. Call it
// after the shapers are attached.
func Serve(out io.Writer, at Address, b *Board) *metricsServer {
	ctx, stop := context.WithCancel(context.Background())
	s := &metricsServer{stop: stop}
	conns := connections.New(connections.Max())
	s.http = http.Server{
		Handler:                      metricsHandler(at.host, b),
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            requestTime,
		ReadTimeout:                  requestTime,
		WriteTimeout:                 responseTime,
		IdleTimeout:                  keepAliveTime,
		MaxHeaderBytes:               headerBytes,
		ConnState:                    conns.Changed,
		ErrorLog:                     log.New(io.Discard, "", 0), // clients could fill the log
	}
	go func() {
		listener := at.listen(ctx, out)
		if listener == nil {
			return
		}
		defer listener.Close()
		go func() { _ = s.http.Serve(conns.Listener(listener)) }() // returns after Close
		fmt.Fprintf(out, "shaper: metrics at http://%s/metrics\n", listener.Addr())
		<-ctx.Done()
	}()
	return s
}

// Close stops the server and closes all connections. It does not wait for the printing goroutine,
// because its terminal may be stopped.
func (s *metricsServer) Close() {
	s.stop()
	_ = s.http.Close() // the listener is closed anyway
}

// listen listens at the address as soon as possible. It returns nil if the context ends
// before.
func (at Address) listen(ctx context.Context, out io.Writer) net.Listener {
	var config net.ListenConfig
	for last := ""; ; {
		listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(at.host, at.port))
		if err == nil {
			return listener
		}
		if text := err.Error(); text != last && ctx.Err() == nil {
			fmt.Fprintf(out, "shaper: --metrics: %s: shaping continues, trying again every %v\n", text,
				listenInterval)
			last = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenInterval):
		}
	}
}

// metricsHandler answers requests. host is the host in --metrics.
func metricsHandler(host string, b *Board) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		now, err := b.latest(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Vary", "Accept-Encoding")
		if !acceptsGzip(r.Header) {
			respond(w, r, metricsType, now.body())
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		respond(w, r, metricsType, now.compressed())
	})
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) {
		respond(w, r, "text/html; charset=utf-8", landing(b.peek()))
	})
	names := hostNames(host)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD are allowed", http.StatusMethodNotAllowed)
		case !names.accept(r.Host):
			http.Error(w, fmt.Sprintf(
				"unknown host %q: use an IP address, localhost, or the host given by --metrics",
				r.Host), http.StatusForbidden)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

func respond(w http.ResponseWriter, r *http.Request, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may be gone
	}
}

// acceptsGzip reports whether a client accepts an answer compressed with gzip.
func acceptsGzip(h http.Header) bool {
	for _, coding := range strings.Split(h.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.ReplaceAll(coding, " ", ""), ";")
		if strings.EqualFold(name, "gzip") {
			return strings.Trim(q, "q=0.") != "" || q == ""
		}
	}
	return false
}

// landing returns the page at the root: a link to the metrics, and the problems of shapers.
func landing(now *snapshot) []byte {
	var b strings.Builder
	b.WriteString("<!DOCTYPE html>\n<html lang=\"en\"><head><title>shaper</title></head><body>\n<h1>shaper</h1>\n<p><a href=\"/metrics\">Metrics</a></p>\n")
	if now != nil {
		for i := range now.shapers {
			if o := &now.shapers[i]; o.problem != "" {
				fmt.Fprintf(&b, "<p>%s</p>\n", html.EscapeString(live.Name(&o.About)+": "+o.problem))
			}
		}
	}
	b.WriteString("</body></html>\n")
	return []byte(b.String())
}

// hosts are the host names allowed in requests. A request with any other name may come from a web
// page whose name was made to resolve to this address (DNS rebinding).
type hosts map[string]bool

func hostNames(given string) hosts {
	h := hosts{"localhost": true, strings.ToLower(given): true}
	if name, err := os.Hostname(); err == nil {
		h[strings.ToLower(name)] = true
	}
	return h
}

// accept reports whether a Host header is allowed. Browsers always send one.
func (h hosts) accept(host string) bool {
	if name, port, err := net.SplitHostPort(host); err == nil {
		if host = name; strings.Trim(port, digits) != "" {
			return false
		}
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if host == "" || isIP(host) {
		return true
	}
	return h[strings.ToLower(strings.TrimSuffix(host, "."))]
}
