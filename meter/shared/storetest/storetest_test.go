package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

var ctx = context.Background()

// TestServer checks all ways to end, stop and configure a server.
func TestServer(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		c := s.Client()
		noError(t, c.Set(ctx, "k", "v", 0).Err())
		s.Restart()
		if n := countKeys(t, c); n != 0 {
			t.Errorf("got %d keys after a restart without Persist, want 0", n)
		}
		noError(t, c.Set(ctx, "k", "v", 0).Err())
		s.Flush()
		if n := countKeys(t, c); n != 0 {
			t.Errorf("got %d keys after Flush, want 0", n)
		}

		s.Pause()
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if err := c.Ping(short).Err(); !errors.Is(err, context.DeadlineExceeded) && !os.IsTimeout(err) {
			t.Errorf("PING to a paused server: got %v, want a timeout", err)
		}
		s.Resume()
		noError(t, c.Ping(ctx).Err())

		pid := s.PID()
		s.Kill()
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("signal 0 to a killed server: got %v, want ESRCH", err)
		}
		if err := c.Ping(ctx).Err(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("PING to a killed server: got %v, want ECONNREFUSED", err)
		}
	})
}

// TestOptions combines a password, a user, TLS, persistence and a memory limit.
func TestOptions(t *testing.T) {
	t.Parallel()
	opts := []storetest.Option{
		storetest.Password("secret"), storetest.User("anna", "word", "~a*", "+get", "+auth", "+hello"),
		storetest.TLS(), storetest.Persist(), storetest.MaxMemory("3mb"),
	}
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		c := s.Client()
		noError(t, c.Set(ctx, "k", "v", 0).Err())
		s.Restart()
		if n := countKeys(t, c); n != 1 {
			t.Errorf("got %d keys after a restart with Persist, want 1", n)
		}
		o, err := redis.ParseURL(s.URLOf("anna", "word"))
		noError(t, err)
		o.TLSConfig.RootCAs = s.TLS().RootCAs
		anna := redis.NewClient(o)
		defer anna.Close()
		if err := anna.Get(ctx, "a").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("GET of the user's own key: got %v, want redis.Nil", err)
		}
		if err := anna.Get(ctx, "k").Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Errorf("GET of another key: got %v, want NOPERM", err)
		}
		var full error
		for i := 0; i < 100 && full == nil; i++ {
			full = c.Set(ctx, fmt.Sprint("large", i), make([]byte, 100_000), 0).Err()
		}
		if full == nil || !strings.HasPrefix(full.Error(), "OOM") {
			t.Errorf("10 MB in 3 MB: got %v, want OOM", full)
		}
	}, opts...)
}

// TestSentinel makes Sentinels replace a killed primary by its replica.
func TestSentinel(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, primary *storetest.Server) {
		noError(t, primary.Client().Set(ctx, "k", "v", 0).Err())
		replica := storetest.Replica(t, primary)
		if n := countKeys(t, replica.Client()); n != 1 {
			t.Errorf("got %d keys on the replica, want 1", n)
		}
		if err := replica.Client().Set(ctx, "k", "v", 0).Err(); err == nil ||
			!strings.HasPrefix(err.Error(), "READONLY") {
			t.Errorf("SET on a replica: got %v, want READONLY", err)
		}
		sentinels := storetest.Sentinel(t, primary, 3)
		if got := sentinels.Primary(); got != primary.Addr {
			t.Errorf("primary %q, want %q", got, primary.Addr)
		}
		primary.Kill()
		sentinels.Failover(primary)
		if got := sentinels.Primary(); got != replica.Addr {
			t.Errorf("primary after failover %q, want %q", got, replica.Addr)
		}
		storetest.Until(t, "replica is the primary", func() bool { return replica.Role() == "master" })
		c := redis.NewFailoverClient(sentinels.Options())
		defer c.Close()
		noError(t, c.Set(ctx, "k", "v", 0).Err())
	}, storetest.Password("secret"))
}

// TestCluster writes keys to a cluster, moves a slot and fails over.
func TestCluster(t *testing.T) {
	t.Parallel()
	for _, kind := range storetest.Kinds(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			nodes := storetest.Cluster(t, kind, 3, storetest.Password("secret"))
			c := nodes.Client()
			for i := range 30 {
				noError(t, c.Set(ctx, fmt.Sprint("key", i), "v", 0).Err())
			}
			slot := nodes.Slot("key1")
			from, to := nodes.Owner(slot)
			nodes.Begin(slot, to)
			if err := from.Client().Get(ctx, "{key1}absent").Err(); err == nil ||
				!strings.HasPrefix(err.Error(), "ASK") {
				t.Errorf("GET of a missing key while its slot moves: got %v, want ASK", err)
			}
			nodes.Move(slot, to)
			if err := from.Client().Get(ctx, "key1").Err(); err == nil ||
				!strings.HasPrefix(err.Error(), "MOVED") {
				t.Errorf("GET of a moved key: got %v, want MOVED", err)
			}
			noError(t, c.Get(ctx, "key1").Err())

			nodes.Primaries[0].Kill()
			storetest.Until(t, "replica takes over",
				func() bool { return nodes.Replicas[0].Role() == "master" })
			storetest.Until(t, "all slots can be read", func() bool {
				for i := range 30 {
					if err := c.Get(ctx, fmt.Sprint("key", i)).Err(); err != nil &&
						!errors.Is(err, redis.Nil) {
						return false
					}
				}
				return true
			})
		})
	}
}

// TestProxy causes each failure with a proxy in front of an echo server.
func TestProxy(t *testing.T) {
	t.Parallel()
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	p := storetest.Proxy(t, echo.Addr().String())
	dialed := 0
	dial := func() net.Conn {
		dialed++
		c, err := net.Dial("tcp", p.Addr)
		noError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	// ask returns the echo of a word, or an error if it does not arrive in
	// time.
	ask := func(c net.Conn, word string, within time.Duration) (string, error) {
		_, err := c.Write([]byte(word))
		if err != nil {
			return "", err
		}
		_ = c.SetReadDeadline(time.Now().Add(within))
		b := make([]byte, len(word))
		_, err = io.ReadFull(c, b)
		return string(b), err
	}
	c := dial()
	if got, err := ask(c, "passes", time.Minute); got != "passes" || err != nil {
		t.Errorf("got %q, %v, want \"passes\"", got, err)
	}
	for _, d := range []storetest.Direction{storetest.ToServer, storetest.ToClient, storetest.Both} {
		p.Stall(d)
		if _, err := ask(c, "late", 20*time.Millisecond); !os.IsTimeout(err) {
			t.Errorf("direction %d stalled: got %v, want a timeout", d, err)
		}
		p.Heal()
		if got, err := ask(c, "!", time.Minute); got != "l" || err != nil {
			t.Errorf("direction %d healed: got %q, %v, want the delayed bytes", d, got, err)
		}
		rest := make([]byte, 4)
		if _, err := io.ReadFull(c, rest); !bytes.Equal(rest, []byte("ate!")) {
			t.Errorf("direction %d healed: got %q, %v, want the delayed bytes", d, rest, err)
		}

		// On a busy machine, the proxy may read the bytes only after Heal.
		storetest.Until(t, "a connection that has lost bytes is closed", func() bool {
			p.Cut(d)
			lossy := dial()
			if _, err := ask(lossy, "lost", 20*time.Millisecond); !os.IsTimeout(err) {
				t.Errorf("direction %d cut: got %v, want a timeout", d, err)
			}
			p.Heal()
			_, err := ask(lossy, "!", time.Minute)
			return err != nil && !os.IsTimeout(err)
		})
	}
	c = dial()
	p.Delay(storetest.ToServer, 30*time.Millisecond)
	begin := time.Now()
	if _, err := ask(c, "slow", time.Minute); err != nil || time.Since(begin) < 30*time.Millisecond {
		t.Errorf("got %v after %v, want at least 30 ms", err, time.Since(begin))
	}
	p.Refuse()
	if _, err := ask(c, "refused", time.Minute); err == nil {
		t.Error("an open connection passed bytes after Refuse")
	}
	if _, err := ask(dial(), "refused", time.Minute); err == nil {
		t.Error("a new connection passed bytes after Refuse")
	}
	p.Heal()
	if got, err := ask(dial(), "healed", time.Minute); got != "healed" {
		t.Errorf("got %q, %v, want \"healed\"", got, err)
	}
	if n := p.Accepted(); n != dialed {
		t.Errorf("got %d connections accepted, want %d", n, dialed)
	}
}

func countKeys(t *testing.T, c *redis.Client) int64 {
	t.Helper()
	n, err := c.DBSize(ctx).Result()
	noError(t, err)
	return n
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
