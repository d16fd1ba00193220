package livetest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// TestLiveRecipeProxy gives users of HAProxy different plans: each connection has the mark of its user.
func TestLiveRecipeProxy(t *testing.T) {
	skipInVM(t)
	r := newRecipe(t, "proxy", "eth0", [2]string{"haproxy", "haproxy"})
	const burst, length = 30_000, 200_000
	r.fix("users.yaml", "rate: 10mbit, burst: 128KiB", burst)
	r.edit("users.yaml", "rate: 100mbit, burst: 1MiB", "rate: 1gbit, burst: 100MB")
	var listener net.Listener
	var err error
	r.near.Do(func() { listener, err = net.Listen("tcp", "127.0.0.1:8080") })
	if err != nil {
		t.Fatal(err)
	}
	app := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, length)) // the client may have ended
	})}
	go app.Serve(listener) //nolint:errcheck // ends with the test
	t.Cleanup(func() { app.Close() })
	r.serve("eth0 egress")
	r.background(r.near, "setpriv", "--reuid", fmt.Sprint(nobodyUser), "--clear-groups", "--inh-caps", "+net_admin",
		"--ambient-caps", "+net_admin", "haproxy", "-db", "-f", "/etc/shaper/haproxy.cfg")
	eventually(t, func() error {
		var conn net.Conn
		if r.far.Do(func() { conn, err = net.Dial("tcp", "10.0.0.1:8000") }); err == nil {
			conn.Close()
		}
		return err
	})

	// get sends a request with a connection of its own. It ends early when stop is done.
	get := func(stop context.Context, user, password string) (status int, body int64) {
		t.Helper()
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
				r.far.Do(func() { conn, err = (&net.Dialer{}).DialContext(ctx, network, address) })
				return conn, err
			},
		}}
		request, _ := http.NewRequestWithContext(stop, http.MethodGet, "http://10.0.0.1:8000/", nil)
		request.SetBasicAuth(user, password)
		answer, err := client.Do(request)
		if err != nil {
			return 0, 0
		}
		defer answer.Body.Close()
		body, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode, body
	}
	if status, _ := get(t.Context(), "alice", "wrong"); status != http.StatusUnauthorized {
		t.Errorf("wrong password: status %d", status)
	}
	for name, row := range r.customers() {
		if row.Packets > 0 {
			t.Errorf("a refused request counts for %s: %+v", name, row)
		}
	}
	if status, body := get(t.Context(), "bob", "builder"); status != 200 || body != length {
		t.Errorf("bob: status %d, %d bytes: want all %d", status, body, length)
	}
	stop, cancel := context.WithCancel(t.Context())
	received := make(chan int64)
	go func() {
		_, body := get(stop, "alice", "wonderland")
		received <- body
	}()
	var rows map[string]customerRow
	eventually(t, func() error {
		if rows = r.customers(); rows["alice"].Dropped.Packets == 0 {
			return fmt.Errorf("nothing to alice was dropped: %+v", rows)
		}
		return nil
	})
	cancel()
	if body := <-received; body > burst {
		t.Errorf("alice received %d bytes: want at most %d", body, burst)
	}
	if bob := rows["bob"]; bob.Bytes < length || bob.Dropped.Packets > 0 {
		t.Errorf("bob: %+v: want %d bytes, and no drop", bob, length)
	}
	r.run.stopBySIGTERM()
}
