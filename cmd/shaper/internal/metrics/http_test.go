package metrics

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/connections"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// patient is a time limit for actions that should take no time.
const patient = 5 * time.Minute

// notes collects the output of a server.
type notes struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (n *notes) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.b.Write(b)
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.b.String()
}

func eventually(t *testing.T, what string, try func() bool) {
	t.Helper()
	for end := time.Now().Add(patient); !try(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patient, what)
		}
	}
}

// metricsFor serves the metrics of a policy on a free port. An owner publishes when asked.
func metricsFor(t *testing.T, policy string) (address string, b *Board) {
	t.Helper()
	o := observed(t, policy)
	o.problem = "<other> qdisc"
	b = NewBoard(0)
	go func() {
		for {
			select {
			case <-t.Context().Done():
				return
			case <-b.Requests():
				b.Publish([]Observation{o}, nil)
			}
		}
	}()
	out := &notes{}
	server := Serve(out, Address{"127.0.0.1", "0"}, b)
	t.Cleanup(server.Close)
	eventually(t, "metrics at", func() bool { return strings.Contains(out.String(), "/metrics\n") })
	if _, err := fmt.Sscanf(out.String(), "shaper: metrics at http://%s", &address); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	return strings.TrimSuffix(address, "/metrics"), b
}

func dialServer(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// sendRequest sends a request unchanged, and returns the response with its body.
func sendRequest(t *testing.T, address, request string) (*http.Response, string) {
	t.Helper()
	response, body, err := trySend(t, address, request)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	return response, body
}

func trySend(t *testing.T, address, request string) (*http.Response, string, error) {
	t.Helper()
	conn := dialServer(t, address)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patient))
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, "", err
	}
	method, _, _ := strings.Cut(request, " ")
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(response.Body)
	return response, string(body), err
}

const scrapeRequest = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

// scrapes checks that a scrape returns the metrics. It scrapes again if the server closes the
// connection or has no metrics yet: a slow machine may need longer than its limits allow.
func scrapes(t *testing.T, address string) {
	t.Helper()
	eventually(t, "a complete response", func() bool {
		response, body, err := trySend(t, address, scrapeRequest)
		if err != nil || response.StatusCode == http.StatusServiceUnavailable {
			return false
		}
		if response.StatusCode != http.StatusOK || len(parse(t, []byte(body))) == 0 {
			t.Errorf("got %s: %.300s", response.Status, body)
		}
		return true
	})
}

// TestMetricsRequests checks the answers to requests.
func TestMetricsRequests(t *testing.T) {
	t.Parallel()
	address, _ := metricsFor(t, "classes: [{name: a}]")
	_, port, _ := net.SplitHostPort(address)
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		request, host string
		status        int
		body          string // a part of it; "-" for none
	}{
		{"GET /metrics", address, 200, `shaper_info{direction="egress",`},
		{"HEAD /metrics", address, 200, "-"},
		{"GET /", address, 200, `<a href="/metrics">`},
		{"GET /", address, 200, `eth0 egress: &lt;other&gt; qdisc`},
		{"HEAD /", address, 200, "-"},
		{"GET /debug/pprof/", address, 404, ""},
		{"GET /metrics/", address, 404, ""},
		{"GET /../metrics/../../etc/passwd", address, 307, ""},
		{"POST /metrics", address, 405, "only GET and HEAD"},
		{"PUT /metrics", address, 405, "only GET and HEAD"},
		{"DELETE /metrics", address, 405, "only GET and HEAD"},
		{"CONNECT /metrics", address, 405, "only GET and HEAD"},
		{"OPTIONS *", address, 405, "only GET and HEAD"},
		{"TRACE /", address, 405, "only GET and HEAD"},
		{"GET /metrics", "localhost", 200, "shaper_info"},
		{"GET /metrics", "LOCALHOST.:" + port, 200, "shaper_info"},
		{"GET /metrics", "[::1]:" + port, 200, "shaper_info"},
		{"GET /metrics", "192.0.2.1", 200, "shaper_info"},
		{"GET /metrics", hostname + ":" + port, 200, "shaper_info"},
		{"GET /metrics", "", 200, "shaper_info"},
		{"GET /metrics", "evil.example:" + port, 403, `unknown host "evil.example:` + port + `": use an IP address, localhost, or the host given by --metrics`},
		{"GET /", "evil.example", 403, "unknown host"},
		{"GET /metrics", "127.0.0.1.evil.example", 403, "unknown host"},
		{"GET /metrics", "localhost.evil.example", 403, "unknown host"},
		{"GET http://evil.example/metrics", address, 403, "unknown host"},
		{"GET /metrics", address + "\r\nX: " + strings.Repeat("x", 2*headerBytes), 431, ""},
		{"nonsense", address, 400, ""},
	} {
		response, body := sendRequest(t, address,
			row.request+" HTTP/1.1\r\nHost: "+row.host+"\r\nConnection: close\r\n\r\n")
		if response.StatusCode != row.status || !strings.Contains(body, row.body) && row.body != "-" ||
			row.body == "-" && body != "" {
			t.Errorf("%s, host %.80q: got %s %.200q: want %d %q", row.request, row.host, response.Status,
				body, row.status, row.body)
		}
		if allow := response.Header.Get("Allow"); (allow == "GET, HEAD") != (row.status == 405) {
			t.Errorf("%s: got Allow %q with status %d", row.request, allow, row.status)
		}
	}
	response, body := sendRequest(t, address, "GET /metrics HTTP/1.0\r\n\r\n")
	if response.StatusCode != 200 ||
		response.Header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("HTTP/1.0 without a host: got %s %v %.200q, want 200 and text", response.Status,
			response.Header, body)
	}
}

// TestMetricsGivenHost checks that the host in --metrics is accepted.
func TestMetricsGivenHost(t *testing.T) {
	h := hostNames("Metrics.Example")
	for host, want := range map[string]bool{
		"metrics.example": true, "METRICS.example:9090": true, "metrics.example.:": true, "": true, "::1": true, "[::1]": true, "[::1]:9090": true, "[fe80::1%eth0]": true,
		"example": false, "x.metrics.example": false, ":91>90": false, "metrics.example:http": false, "metrics.example:+1": false, "[metrics.example": false,
		"metrics.example]": false, "[::1": false, "::1]": false, "[[::1]]": false, "[fe80::1%a>b]": false, "[fe80::1%a>b]:80": false,
	} {
		if h.accept(host) != want {
			t.Errorf("got %s: want %v", host, want)
		}
	}
}

// TestMetricsGzip checks that the answer is compressed for clients that accept it.
func TestMetricsGzip(t *testing.T) {
	t.Parallel()
	address, _ := metricsFor(t, "classes: [{name: a}]")
	for accept, want := range map[string]bool{
		"gzip": true, "deflate, gzip;q=1.0, *;q=0.5": true, "GZIP; q=0.5": true,
		"gzip;q=0": false, "gzip; q=0.000": false, "identity": false, "xgzip": false, "": false,
	} {
		response, body := sendRequest(t, address,
			"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: "+accept+"\r\nConnection: close\r\n\r\n")
		text := []byte(body)
		if got := response.Header.Get("Content-Encoding") == "gzip"; got != want {
			t.Errorf("%q: compressed %v, want %v", accept, got, want)
		} else if got {
			r, err := gzip.NewReader(strings.NewReader(body))
			if err == nil {
				text, err = io.ReadAll(r)
			}
			if err != nil {
				t.Errorf("%q: %v", accept, err)
			}
		}
		if len(parse(t, text)) == 0 {
			t.Errorf("%q: got no metrics", accept)
		}
	}
}

// closedBy counts the connections that the server closed.
func closedBy(conns []net.Conn) (n int) {
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			n++
		}
	}
	return n
}

// TestMetricsIdleClients checks that a scrape is answered while many clients send no request,
// send a part of one, or keep their connections.
func TestMetricsIdleClients(t *testing.T) {
	t.Parallel()
	for _, first := range []string{
		"", "GET /metrics HTTP/1.1\r\nHost: ", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			address, _ := metricsFor(t, "classes: [{name: a}]")
			var clients []net.Conn
			for range 3 * connections.Max() {
				conn := dialServer(t, address)
				_, _ = io.WriteString(conn, first) // it may be closed already
				clients = append(clients, conn)
			}
			scrapes(t, address)
			for _, c := range clients { // the landing page
				_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
				_, _ = io.Copy(io.Discard, c)
			}
			eventually(t, "all are closed", func() bool { return closedBy(clients) == len(clients) })
			scrapes(t, address)
		})
	}
}

// TestMetricsNeverReading checks that a scrape is answered while other clients request a lot
// and read nothing. Their connections are closed in the end.
func TestMetricsNeverReading(t *testing.T) {
	t.Parallel()
	address, _ := metricsFor(t, manyClasses())
	var clients []net.Conn
	for range connections.Max() {
		conn := dialServer(t, address)
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		if _, err := io.WriteString(conn, scrapeRequest); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, conn)
	}
	scrapes(t, address)
	eventually(t, "all are closed", func() bool {
		n := 0
		for _, c := range clients { // an incomplete answer
			if _, err := c.Write([]byte{0}); err != nil {
				n++
			}
		}
		return n == len(clients)
	})
}

// TestMetricsSlowRequest checks that a client that sends a byte now and then is closed.
func TestMetricsSlowRequest(t *testing.T) {
	t.Parallel()
	address, _ := metricsFor(t, "classes: [{name: a}]")
	conn := dialServer(t, address)
	_, _ = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ")
	eventually(t, "closed", func() bool {
		time.Sleep(50 * time.Millisecond)
		_, err := conn.Write([]byte("x"))
		return err != nil
	})
}

// TestMetricsOwnerLate checks the answer if the owner of the shapers does not publish.
func TestMetricsOwnerLate(t *testing.T) {
	t.Parallel()
	out := &notes{}
	server := Serve(out, Address{"localhost", "0"}, NewBoard(0))
	defer server.Close()
	eventually(t, "metrics at", func() bool { return strings.Contains(out.String(), "/metrics\n") })
	_, address, _ := strings.Cut(out.String(), "http://")
	response, body := sendRequest(t, strings.TrimSuffix(address, "/metrics\n"), scrapeRequest)
	if response.StatusCode != http.StatusServiceUnavailable ||
		!strings.Contains(body, "no counters for "+publishIn.String()) {
		t.Errorf("got %s %q, want 503 with \"no counters\"", response.Status, body)
	}
}

// TestMetricsPortTaken checks that the server warns once, and serves as soon as the port is
// free.
func TestMetricsPortTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.1.2.3:0") // an address that no client uses
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	b, out := NewBoard(0), &notes{}
	b.Publish([]Observation{Absent("eth0", kernel.Egress, "")}, nil)
	server := Serve(out, Address{"127.1.2.3", port}, b)
	defer server.Close()
	warning := "shaper: --metrics: listen tcp " + address +
		": bind: address already in use: shaping continues, trying again every 3s\n"
	eventually(t, "a warning", func() bool { return out.String() != "" })
	if out.String() != warning {
		t.Errorf("got %q, want %q", out, warning)
	}
	taken.Close()
	eventually(t, "served",
		func() bool { return out.String() == warning+"shaper: metrics at http://"+address+"/metrics\n" })
	scrapes(t, address)
}

// TestMetricsClose checks that Close returns at once: while the server waits for a port, with
// idle clients, and with a stopped terminal.
func TestMetricsClose(t *testing.T) {
	t.Parallel()
	address, b := metricsFor(t, "classes: [{name: a}]")
	second := Serve(&notes{}, Address{"127.0.0.1", address[strings.LastIndex(address, ":")+1:]}, b)
	_, stopped := io.Pipe()
	third := Serve(stopped, Address{"127.0.0.1", "0"}, b)
	ctx, done := context.WithTimeout(t.Context(), patient)
	go func() {
		second.Close()
		third.Close()
		done()
	}()
	<-ctx.Done()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error("Close did not return")
	}
	scrapes(t, address)
}

// TestMetricsAddress checks wrong values of --metrics.
func TestMetricsAddress(t *testing.T) {
	for text, want := range map[string]Address{
		":9090": {"127.0.0.1", "9090"}, "127.0.0.1:9090": {"127.0.0.1", "9090"}, "[::1]:0": {"::1", "0"}, "0.0.0.0:http": {"0.0.0.0", "http"},
		"host-1.example:1": {"host-1.example", "1"}, "[fe80::1%eth0]:9090": {"fe80::1%eth0", "9090"},
	} {
		if got, err := ParseAddress(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v: want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "9090", "127.0.0.1", "127.0.0.1:", ":", ":65536", ":-1", ":nosuchservice", "::1:9090",
		"1.2.3.456:9090", "a b:9090", "http://a:9090", "a/b:9090", "[fe80::1%a b]:9090", "[fe80::1%a/b]:9090",
		"[fe80::1%\n]:9090",
	} {
		_, err := ParseAddress(text)
		if err == nil ||
			err.Error() != fmt.Sprintf("--metrics %q: want an address such as 127.0.0.1:9190", text) {
			t.Errorf("%q: got %v, want that it is no address", text, err)
		}
	}
}

// FuzzAddress parses addresses and hosts of requests. Accepted ones contain only the characters of
// addresses.
func FuzzAddress(f *testing.F) {
	for _, text := range []string{
		":9190", "127.0.0.1:9190", "[::1]:http", "localhost:1", "a.b_c-d:0", "[fe80::1%eth0]:80",
		"[fe80::1%a b]:80", ":91>90", "[fe80::1%a>b]",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAddress(text)
		const signs = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_@%:+"
		if err == nil && (a.host == "" || a.port == "" || strings.Trim(a.host+a.port, signs) != "") {
			t.Errorf("%q: %+v", text, a)
		}
		if (hosts{"localhost": true}).accept(text) && strings.Trim(text, signs+"[]") != "" {
			t.Errorf("host %q is accepted", text)
		}
	})
}
