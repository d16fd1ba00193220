package shared_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// policy is a limit in RateLimit-Policy: quota in window seconds.
type policy struct {
	name          string
	quota, window int64
	limiter       *shared.Limiter
}

// limited lets a client make a request if all policies have room for it. It
// reports the remaining quotas in the fields of
// draft-ietf-httpapi-ratelimit-headers-11. While the store is lost and a limit
// is closed, the status is 503.
func limited(store *shared.Backend, policies []policy, next http.Handler) http.Handler {
	var announced []string
	for _, p := range policies {
		announced = append(announced, fmt.Sprintf("%q;q=%d;w=%d", p.name, p.quota, p.window))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		budget, err := client(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var requests []shared.Request
		for _, p := range policies {
			requests = append(requests, shared.Request{Limiter: p.limiter, Budget: budget, N: 1})
		}
		decisions, err := store.All(r.Context(), requests)
		if err != nil { // the client has disconnected
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}

		status, wait := http.StatusOK, time.Duration(0)
		var limits, violated []string
		for i, d := range decisions {
			// No more than r may be used until t. It must not be later than
			// Retry-After.
			t := d.ResetAfter
			if !d.Allowed {
				t = d.RetryAfter
			}
			if d.Source == shared.FromClosed {
				status = http.StatusServiceUnavailable
			} else if !d.Allowed && status == http.StatusOK {
				status = http.StatusTooManyRequests
			}
			if d.RetryAfter > 0 {
				violated, wait = append(violated, policies[i].name), max(wait, d.RetryAfter)
			}
			item := fmt.Sprintf("%q;r=%d", policies[i].name, d.Remaining)
			if t > 0 {
				item += fmt.Sprintf(";t=%d", seconds(t))
			}
			limits = append(limits, item)
		}
		w.Header().Set("RateLimit-Policy", strings.Join(announced, ", "))
		w.Header().Set("RateLimit", strings.Join(limits, ", "))
		if status == http.StatusOK {
			next.ServeHTTP(w, r)
			return
		}
		if wait < meter.Never {
			w.Header().Set("Retry-After", fmt.Sprint(seconds(wait)))
		}
		problem := map[string]any{
			"type":  "https://iana.org/assignments/http-problem-types#quota-exceeded",
			"title": http.StatusText(status), "violated-policies": violated,
		}
		if status == http.StatusServiceUnavailable {
			problem["type"] = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(problem)
	})
}

// client returns the budget of a request: an IPv4 address, or the 64-bit prefix
// of an IPv6 address, because one client can use all addresses of its prefix.
func client(r *http.Request) (string, error) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "", err
	}
	addr := from.Addr().Unmap().WithZone("")
	if addr.Is4() {
		return addr.String(), nil
	}
	return netip.PrefixFrom(addr, 64).Masked().String(), nil
}

func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// A handler that limits each client twice: 2 requests at once, one of which
// refills per minute, and 3 per day.
func ExampleBackend_All() {
	store, handler, err := service("redis://127.0.0.1:6379", shared.FailClosed)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	_ = http.ListenAndServe("127.0.0.1:8080", handler)
}

func service(url string, fail shared.Fail) (*shared.Backend, http.Handler, error) {
	client, err := shared.Open(shared.Server{URL: url})
	if err != nil {
		return nil, nil, err
	}
	store, err := shared.New(client, shared.Config{Deadline: 10 * time.Second})
	if err != nil {
		return nil, nil, err
	}
	policies := []policy{{name: "burst", quota: 2, window: 120}, {name: "daily", quota: 3, window: 86400}}
	for i, params := range []shared.LimitParams{
		meter.TokenBucket{Rate: meter.Per(1, time.Minute), Burst: 2},
		meter.SlidingLog{Limit: 3, Window: 24 * time.Hour, Entries: 3},
	} {
		limit := shared.Limit{Name: policies[i].name, Params: params, Fail: fail}
		if policies[i].limiter, err = store.Limiter(limit); err != nil {
			return nil, nil, err
		}
	}
	return store, limited(store, policies, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "hello")
	})), nil
}

// TestHandler runs the handler of ExampleBackend_All with real servers.
func TestHandler(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		store, handler, err := service(server.URL(), shared.FailClosed)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		ask := func(from string) (int, [4]string) {
			r, w := httptest.NewRequestWithContext(context.Background(), "GET", "/", nil),
				httptest.NewRecorder()
			r.RemoteAddr = from
			handler.ServeHTTP(w, r)
			h := w.Header()
			return w.Code, [4]string{
				h.Get("RateLimit-Policy"), h.Get("RateLimit"), h.Get("Retry-After"),
				strings.TrimSpace(w.Body.String()),
			}
		}
		const announced = `"burst";q=2;w=120, "daily";q=3;w=86400`
		const exceeded = `{"title":"Too Many Requests","type":"https://iana.org/assignments/http-problem-types#quota-exceeded","violated-policies":["burst"]}`
		var fault string
		storetest.Until(t, "five requests take less than a second, the unit of t", func() bool {
			server.Flush()
			fault = ""
			begin := time.Now()
			for i, c := range []struct {
				from string
				code int
				want [4]string
			}{
				{"192.0.2.1:5000", 200, [4]string{announced, `"burst";r=1;t=60, "daily";r=2;t=86400`, "", "hello"}},
				{"192.0.2.1:5001", 200, [4]string{announced, `"burst";r=0;t=120, "daily";r=1;t=86400`, "", "hello"}},
				{"[::ffff:192.0.2.1]:5002", 429, [4]string{announced, `"burst";r=0;t=60, "daily";r=1`, "60", exceeded}},
				{"[2001:db8::1]:5000", 200, [4]string{announced, `"burst";r=1;t=60, "daily";r=2;t=86400`, "", "hello"}},
				{"[2001:db8::2]:5000", 200, [4]string{announced, `"burst";r=0;t=120, "daily";r=1;t=86400`, "", "hello"}},
			} {
				if code, got := ask(c.from); code != c.code || !reflect.DeepEqual(got, c.want) {
					fault = fmt.Sprintf("request %d: %d %q,\nwant %d %q", i, code, got, c.code, c.want)
					break
				}
			}
			return time.Since(begin) < time.Second
		})
		if fault != "" {
			t.Error(fault)
		}
		server.Kill()
		const reduced = `{"title":"Service Unavailable","type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","violated-policies":["burst","daily"]}`
		if code, got := ask("192.0.2.1:5000"); code != 503 ||
			got != [4]string{announced, `"burst";r=0;t=1, "daily";r=0;t=1`, "1", reduced} {
			t.Errorf("without the store: got %d %q, want 503 with no quota left", code, got)
		}
	})
}
