package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// fakeAPI is an API without a shaper.
type fakeAPI struct {
	calls   atomic.Int64     // of Status
	set     []changes.Change // by the last call of Set
	err     error            // of each call
	reading time.Duration    // time that Customers takes
	broken  bool             // Customers panics
	rows    int              // of all customers
	top     int
	by      string
	name    string
	request live.CustomerRequest
	query   live.CustomerQuery
}

func (f *fakeAPI) Of(_ context.Context, pattern string) (API, error) {
	if !Chooses(pattern, "eth0") {
		return nil, &NoInterfaceError{pattern}
	}
	return f, nil
}

func (f *fakeAPI) Status(context.Context) (any, error) { return []int64{f.calls.Add(1)}, f.err }

func (f *fakeAPI) Stats(context.Context) (any, error)               { return []string{"<stats>"}, f.err }
func (f *fakeAPI) Links(_ context.Context, views bool) (any, error) { return []bool{views}, f.err }
func (f *fakeAPI) ViewVersion() string                              { return "v7" }

func (f *fakeAPI) Reload(_ context.Context, confirm time.Duration) (Reloaded, error) {
	return Reloaded{Policy: fmt.Sprint("reloaded ", confirm)}, f.err
}

func (f *fakeAPI) Confirm(_ context.Context, by changes.Author) ([]Confirmed, error) {
	return []Confirmed{{Policy: by.With}}, f.err
}

func (f *fakeAPI) Detach(_ context.Context, list []dataplane.Direction, by changes.Author) (any, error) {
	return fmt.Sprint(list, " by ", by.With), f.err
}

func (f *fakeAPI) Views(_ context.Context, counters bool) (any, error) {
	return []bool{counters}, f.err
}

func (f *fakeAPI) Customers(_ context.Context, top int, by string) (func(io.Writer) error, error) {
	time.Sleep(f.reading)
	if f.broken {
		panic("broken")
	}
	f.top, f.by = top, by
	return func(w io.Writer) error {
		_, err := w.Write([]byte("[1]\n"))
		return err
	}, f.err
}

func (f *fakeAPI) Customer(_ context.Context, name string) (any, error) {
	f.name = name
	return name, f.err
}

func (f *fakeAPI) Sizes(context.Context) (customers, changes int, err error) {
	return f.rows, len(f.set), f.err
}

func (f *fakeAPI) ChangeCustomers(
	_ context.Context, request live.CustomerRequest,
) (live.CustomerReply, error) {
	f.request = request
	reply := live.CustomerReply{Version: "7"}
	for _, item := range request.Items {
		result := live.CustomerResult{Name: item.Name, Done: live.Added, Version: "1"}
		reply.Results = append(reply.Results, result)
	}
	return reply, f.err
}

func (f *fakeAPI) CustomerPage(_ context.Context, q live.CustomerQuery) (live.CustomerPage, error) {
	f.query = q
	return live.CustomerPage{
		Customers: []*live.CustomerTerms{
			{Name: "a", Cells: map[string]string{"plan": "p", "rate": "5mbit"}, Version: "3"},
		},
		Columns: []string{"address"}, Next: "a", Version: "7",
	}, f.err
}

func (f *fakeAPI) Changes(context.Context) ([]changes.Change, error) { return f.set, f.err }

func (f *fakeAPI) Set(_ context.Context, list []changes.Change) error {
	f.set = list
	return f.err
}

const turnOff = `{"kind":"customer","name":"a","off":true}`

// ask sends a request to a handler.
func ask(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

// TestRequests checks the status and the answer of requests.
func TestRequests(t *testing.T) {
	large := `{"kind":"customer","name":"a","plan":"` + strings.Repeat("x", maxBody) + `"}`
	for _, row := range []struct {
		method, path, body string
		status             int
		want               string // part of the answer
	}{
		{"GET", "/v1/status", "", 200, "[1]\n"},
		{"HEAD", "/v1/status", "", 200, ""},
		{"GET", "/v1/stats", "", 200, `["<stats>"]` + "\n"},
		{"GET", "/v1/status?view=v7", "", 200, "[false]\n"},
		{"GET", "/v1/stats?view=v7", "", 200, "[true]\n"},
		{"GET", "/v1/stats?view=v8", "", 400, "another version of shaper"},
		{"GET", "/v1/links", "", 200, "[false]\n"},
		{"GET", "/v1/links?view=v7", "", 200, "[true]\n"},
		{"GET", "/v1/links?view=v8", "", 400, "another version of shaper"},
		{"GET", "/v1/stats?view=", "", 400, "another version of shaper"},
		{"GET", "/v1/customers", "", 200, "[1]\n"},
		{"GET", "/v1/customers?top=0&by=dropped", "", 200, "[1]\n"},
		{"GET", "/v1/customers?top=-1", "", 400, `top \"-1\": want a number`},
		{"GET", "/v1/customers?top=1&top=2", "", 400, `parameter \"top\"`},
		{"GET", "/v1/customers?by=name", "", 400, `by \"name\": want bytes, dropped or rate`},
		{"GET", "/v1/status?top=1", "", 400, `parameter \"top\" is unknown`},
		{"GET", "/v1/status?%zz", "", 400, "query: "},
		{"GET", "/v1/customers/a%2Fb%20%22", "", 200, `"a/b \""` + "\n"},
		{"GET", "/v1/changes", "", 200, "[]\n"},
		{"POST", "/v1/reload", "", 200, `{"policy":"reloaded 0s","interfaces":0,"shapers":[]}`},
		{"POST", "/v1/reload?confirm=90s&interface=e*", "", 200, `"reloaded 1m30s"`},
		{"POST", "/v1/reload?confirm=0s", "", 400, "confirm: it must be above zero"},
		{"POST", "/v1/reload?confirm=", "", 400, "confirm: "},
		{"POST", "/v1/reload?confirm=1", "", 400, "confirm: "},
		{"POST", "/v1/reload?confirmed=1s", "", 400, `parameter \"confirmed\" is unknown`},
		{"POST", "/v1/confirm", "", 200, `"policy":"the API"`},
		{"POST", "/v1/confirm?interface=eth1", "", 404, "eth1"},
		{"POST", "/v1/confirm?direction=egress", "", 400, `parameter \"direction\" is unknown`},
		{"POST", "/v1/confirm", "x", 400, "no body"},
		{"GET", "/v1/confirm", "", 405, "allows POST only"},
		{"POST", "/v1/detach", "", 400, "all=true"},
		{"POST", "/v1/detach?all=true", "", 200, `"[] by the API"`},
		{"POST", "/v1/detach?all=1", "", 400, `all \"1\": want true`},
		{"POST", "/v1/detach?all=true&interface=eth0", "", 400, "all=true"},
		{"POST", "/v1/detach?interface=eth*", "", 200, `"[] by the API"`},
		{"POST", "/v1/detach?interface=eth0&direction=ingress", "", 200, `"[ingress] by the API"`},
		{"POST", "/v1/detach?interface=eth0&direction=egress", "", 200, `"[egress] by the API"`},
		{"POST", "/v1/detach?interface=eth0&direction=both", "", 200, `"[] by the API"`},
		{"POST", "/v1/detach?interface=eth0&direction=", "", 400, `direction \"\": want egress, ingress or both`},
		{"POST", "/v1/detach?interface=eth1", "", 404, "eth1"},
		{"POST", "/v1/detach?interface=", "", 400, "parameter interface is empty"},
		{"POST", "/v1/detach?all=true&policy=x", "", 400, `parameter \"policy\" is unknown`},
		{"POST", "/v1/detach?all=true", "x", 400, "no body"},
		{"GET", "/v1/detach?all=true", "", 405, "allows POST only"},
		{"POST", "/v1/reload", "x", 400, "a reload has no body"},
		{"GET", "/v1/openapi.json", "", 200, `"openapi"`},
		{"GET", "/", "", 404, `there is no \"/\": see /v1/openapi.json`},
		{"GET", "/v1/customers/", "", 404, "there is no"},
		{"GET", "/v2/status", "", 404, "there is no"},
		{"POST", "/v1/status", "", 405, "allows GET only"},
		{"GET", "/v1/reload", "", 405, "allows POST only"},
		{"DELETE", "/v1/changes", "", 405, "allows GET and POST only"},
		{"POST", "/v1/changes", "", 400, "the body is empty"},
		{"POST", "/v1/changes", "[]", 400, "the list of changes is empty"},
		{"POST", "/v1/changes", "[null]", 400, `\"\": want customer, link or queue`},
		{"POST", "/v1/changes", "5", 400, "the body is not a change"},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","rate":"5mbit"}`, 400, `unknown field \"rate\"`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a"}`, 400, "nothing to change"},
		{"POST", "/v1/changes", `{"kind":"customer","name":"","off":true}`, 400, "the name is missing"},
		{"POST", "/v1/changes", `{"kind":"link","name":"a","plan":"b"}`, 400, "want a rate"},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","parameters":{"rate":""}}`, 400, `parameter \"rate\" has no value`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","parameters":{"rate":null}}`, 400, `parameter \"rate\" has no value`},
		{"POST", "/v1/changes", `[{"kind":"customer","name":"a","off":true},{"kind":"x"}]`, 400, `change 2: \"x\"`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"by":"quota"}`, 400, `unknown field \"by\"`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"user":"root"}`, 400, `unknown field \"user\"`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"since":"2001-01-01T00:00:00Z"}`, 400, `unknown field \"since\"`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"in_policy":{}}`, 400, `unknown field \"in_policy\"`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"state":"x"}`, 400, `unknown field \"state\"`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"for":"1"}`, 400, "for: "},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"for":"0s"}`, 422, "would end before it begins"},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"for":"-1h"}`, 400, "for: "},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"for":"1h","until":"2099-01-01T00:00:00Z"}`, 400, "give for or until, not both"},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"until":"2001-01-01T00:00:00Z"}`, 422, "would end before it begins: it is 20"},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"until":"0001-01-01T00:00:00Z"}`, 422, "would end before it begins"},
		{"POST", "/v1/changes", `[{"kind":"customer","name":"b","off":true},{"kind":"customer","name":"a","off":true,"until":"0001-01-01T01:00:00+01:00"}]`, 422, "change 2: customer \\\"a\\\": the change would end"},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","reset":true,"until":"0001-01-01T00:00:00Z"}`, 422, "would end before it begins"},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"until":null}`, 200, `"off":true,"by":"the API","since":"`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","reset":true,"off":true}`, 400, "reset cannot be combined"},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true} {}`, 400, "after top-level value"},
		{"POST", "/v1/changes", `{"Kind":"customer","name":"a","off":true}`, 400, `unknown field \"Kind\": want \"kind\"`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true,"off":false}`, 400, `field \"off\" is there twice`},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","parameters":{"rate":"1mbit","rate":"2mbit"}}`, 400, `field \"rate\" is there twice`},
		{"POST", "/v1/changes", "{\"kind\":\"customer\",\"name\":\"\xff\",\"off\":true}", 400, "not UTF-8"},
		{"POST", "/v1/changes", strings.Repeat("[", 1e6), 400, "exceeded max depth"},
		{"POST", "/v1/changes", "[" + strings.Repeat(turnOff+",", changes.MaxList) + turnOff + "]", 413, "more than 100000 changes: send several lists"},
		{"POST", "/v1/changes", "[" + strings.Repeat(turnOff+",", changes.MaxList-1) + turnOff + "]", 200, ""},
		{"POST", "/v1/changes", `{"kind":"customer","name":"a","off":true`, 400, "unexpected end"},
		{"POST", "/v1/changes", large, 413, "larger than 16 MiB"},
		{
			"POST", "/v1/changes", ` {"kind":"customer","name":"a","plan":"p","parameters":{"rate":"5mbit"},"off":false,"until":"2099-01-01T00:00:00Z"}`, 200,
			`[{"kind":"customer","name":"a","plan":"p","parameters":{"rate":"5mbit"},"off":false,"until":"2099-01-01T00:00:00Z","by":"the API","since":`,
		},
	} {
		api := &fakeAPI{}
		w := ask(newShared(api).serve(false), row.method, row.path, row.body)
		got := w.Body.String()
		if w.Code != row.status || !strings.Contains(got, row.want) ||
			w.Header().Get("Content-Type") != contentJSON {
			t.Errorf("%s %s %.100s: got %d %q, want %d %q", row.method, row.path, row.body, w.Code, got,
				row.status, row.want)
		}
		if !json.Valid(w.Body.Bytes()) || w.Code >= 400 &&
			(!strings.HasPrefix(got, `{"error":"`) || api.set != nil) {
			t.Errorf("%s %s %.100s: got %q, changes %v", row.method, row.path, row.body, got, api.set)
		}
		if allow := w.Header().Get("Allow"); (w.Code == 405) != (allow != "") {
			t.Errorf("%s %s: got Allow: %q with %d", row.method, row.path, allow, w.Code)
		}
	}
}

// TestReadOnly checks that a socket for reading answers only GET.
func TestReadOnly(t *testing.T) {
	api := &fakeAPI{}
	h := newShared(api).serve(true)
	for _, r := range Routes() {
		path := strings.ReplaceAll(r.Path, "{name}", "a")
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "X"} {
			want := http.StatusMethodNotAllowed
			for _, m := range r.Methods {
				switch {
				case m == "GET" && (method == "GET" || method == "HEAD"):
					want = http.StatusOK
				case m == method:
					want = http.StatusForbidden
				}
			}
			if w := ask(h, method, path, `{"kind":"customer","name":"a","off":true}`); w.Code != want ||
				api.set != nil {
				t.Errorf("%s %s: got %d, want %d; changes %v", method, path, w.Code, want, api.set)
			}
		}
	}
}

// TestErrors checks the status of errors.
func TestErrors(t *testing.T) {
	target := changes.Target{Kind: changes.Customer, Name: "a"}
	for _, row := range []struct {
		err  error
		want int
	}{
		{live.ErrBusy, 503},
		{context.DeadlineExceeded, 503},
		{&policyfile.UnknownError{Target: target}, 404},
		{live.ErrNoCustomers, 404},
		{changes.ErrEnded, 422},
		{&policyfile.TermsError{Target: target, Err: errors.New("no such plan")}, 422},
		{errors.Join(&dataplane.FieldError{Field: "rate", Reason: "too large"}), 422},
		{badRequest("bad"), 400},
		{errors.New("input/output error"), 500},
	} {
		for _, r := range Routes() {
			for _, method := range r.Methods {
				if r.Path == "/v1/openapi.json" {
					continue
				}
				body := ""
				switch {
				case r.Path == "/v1/changes":
					body = `{"kind":"customer","name":"a","off":true}`
				case method == "POST" && r.Path == "/v1/customers", method == "PATCH":
					body = `{"name":"a","plan":"p"}`
				}
				path := strings.ReplaceAll(r.Path, "{name}", "a")
				if r.Path == "/v1/detach" {
					path += "?all=true"
				}
				h := newShared(&fakeAPI{err: fmt.Errorf("v0: %w", row.err)}).serve(false)
				if w := ask(h, method, path, body); w.Code != row.want {
					t.Errorf("%s %s: %v: got %d, want %d", method, r.Path, row.err, w.Code, row.want)
				}
			}
		}
	}
}

// TestList checks that a list becomes one call, with times from for.
func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		h := newShared(api).serve(false)
		w := ask(h, "POST", "/v1/changes",
			`[{"kind":"customer","name":"a","plan":"b","for":"90s"},{"kind":"queue","name":"q","parameters":{"rate":"1mbit"}},{"kind":"customer","name":"a","reset":true}]`)
		if len(api.set) != 3 || !api.set[0].Until.Equal(time.Now().Add(90*time.Second)) ||
			api.set[1].Parameters["rate"] != "1mbit" || !api.set[2].Reset {
			t.Fatalf("got %+v", api.set)
		}
		want := `[{"kind":"customer","name":"a","plan":"b","until":"2000-01-01T00:01:30Z",BY},{"kind":"queue","name":"q","parameters":{"rate":"1mbit"},BY},{"kind":"customer","name":"a","reset":true,BY}]` +
			"\n"
		by := `"by":"the API","since":"2000-01-01T00:00:00Z"`
		want = strings.ReplaceAll(want, "BY", by)
		if w.Body.String() != want {
			t.Errorf("got %s, want %s", w.Body, want)
		}
		api.set = api.set[:2] // in force
		api.set[1].By = changes.ByQuota
		time.Sleep(90 * time.Second)
		want = `[{"kind":"customer","name":"a","plan":"b","until":"2000-01-01T00:01:30Z",BY,"state":"ended, still in force"},` +
			`{"kind":"queue","name":"q","parameters":{"rate":"1mbit"},"by":"quota","since":"2000-01-01T00:00:00Z"}]` + "\n"
		want = strings.ReplaceAll(want, "BY", by)
		if w := ask(h, "GET", "/v1/changes", ""); w.Body.String() != want {
			t.Errorf("after the end: got %s, want %s", w.Body, want)
		}
	})
}

// TestKept checks that many clients share one reading, and that a reload ends it.
func TestKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		h := newShared(api).serve(true)
		read := func(want string) {
			t.Helper()
			if w := ask(h, "GET", "/v1/status", ""); w.Body.String() != want+"\n" {
				t.Errorf("got %s, want %s", w.Body, want)
			}
		}
		read("[1]")
		time.Sleep(freshFor - 1)
		read("[1]")
		time.Sleep(time.Nanosecond)
		read("[2]")
	})
	api := &fakeAPI{}
	h := newShared(api).serve(false)
	for want := range int64(3) {
		ask(h, "GET", "/v1/status", "")
		if got := api.calls.Load(); got != want+1 {
			t.Errorf("got %d readings, want %d", got, want+1)
		}
		ask(h, "POST", "/v1/reload", "")
	}
}

// TestCustomersTurns checks that clients read customers one after the other with pauses, and
// that one that reads a large list slowly delays only others of its kind.
func TestCustomersTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{reading: 100 * time.Millisecond, rows: largeList + 1}
		h := newShared(api).serve(true)
		begin := time.Now()
		ask(h, "GET", "/v1/customers?top=3&by=rate", "")
		if api.top != 3 || api.by != "rate" {
			t.Errorf("got top %d by %s", api.top, api.by)
		}
		ask(h, "GET", "/v1/customers", "")
		if took := time.Since(begin); took != 600*time.Millisecond || api.top != defaultTop ||
			api.by != "bytes" {
			t.Errorf("got two answers after %v, top %d by %s", took, api.top, api.by)
		}
		slow := &slowWriter{ResponseRecorder: httptest.NewRecorder(), gate: make(chan struct{})}
		go h.ServeHTTP(slow, httptest.NewRequest("GET", "/v1/customers?top=0", nil))
		synctest.Wait()
		time.Sleep(time.Second)
		if w := ask(h, "GET", "/v1/customers", ""); w.Code != 200 {
			t.Errorf("a small list: got %d", w.Code)
		}
		for _, top := range []string{"0", "10001"} {
			if w := ask(h, "GET", "/v1/customers?top="+top, ""); w.Code != 503 {
				t.Errorf("another large list: got %d", w.Code)
			}
		}
		close(slow.gate)
		synctest.Wait()
		if w := ask(h, "GET", "/v1/customers?top=0", ""); w.Code != 200 ||
			!bytes.Equal(slow.Body.Bytes(), w.Body.Bytes()) {
			t.Errorf("a large list afterwards: got %d %s, first %s", w.Code, w.Body, slow.Body)
		}
		time.Sleep(time.Second) // until the last pause is over
	})
}

// TestCustomersOfSockets checks that many clients of a socket that read customers again and again, slowly,
// delay a client of another socket by one reading and its pause, and that a panic ends its turn.
func TestCustomersOfSockets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{reading: 2 * time.Second}
		both := newShared(api)
		readers, writers := both.serve(true), both.serve(false)
		ctx, cancel := context.WithCancel(t.Context())
		for range 32 {
			go func() {
				for ctx.Err() == nil {
					readers.ServeHTTP(httptest.NewRecorder(),
						httptest.NewRequestWithContext(ctx, "GET", "/v1/customers?top=1", nil))
				}
			}()
		}
		for range 3 {
			time.Sleep(21 * time.Second) // clients of the other socket wait again
			begin := time.Now()
			w := ask(writers, "GET", "/v1/customers", "")
			if took := time.Since(begin); w.Code != 200 || took > 12*time.Second {
				t.Errorf("got %d after %v, want 200 after at most 12s", w.Code, took)
			}
		}
		cancel()
		time.Sleep(time.Minute)

		api.broken = true
		func() {
			defer func() { _ = recover() }() // as net/http does
			ask(writers, "GET", "/v1/customers", "")
		}()
		api.broken = false
		time.Sleep(time.Minute)
		for _, h := range []http.Handler{readers, writers} {
			if w := ask(h, "GET", "/v1/customers", ""); w.Code != 200 {
				t.Errorf("after a panic: got %d %s", w.Code, w.Body)
			}
		}
		time.Sleep(time.Minute) // until the last pause is over
	})
}

// TestLargeTurns checks that clients that do not read large lists delay neither clients of another socket
// nor those of short lists.
func TestLargeTurns(t *testing.T) {
	for _, path := range []string{"/v1/customers?top=0", "/v1/changes"} {
		synctest.Test(t, func(t *testing.T) {
			api := &fakeAPI{rows: largeList + 1, set: make([]changes.Change, largeList+1)}
			both := newShared(api)
			readers, writers := both.serve(true), both.serve(false)
			slow := &slowWriter{ResponseRecorder: httptest.NewRecorder(), gate: make(chan struct{})}
			go readers.ServeHTTP(slow, httptest.NewRequest("GET", path, nil))
			synctest.Wait()
			for h, want := range map[http.Handler]int{readers: 503, writers: 200} {
				if w := ask(h, "GET", path, ""); w.Code != want {
					t.Errorf("%s: got %d, want %d", path, w.Code, want)
				}
			}
			api.rows, api.set = 3, api.set[:3]
			if w := ask(readers, "GET", path, ""); w.Code != 200 {
				t.Errorf("%s, a short list: got %d", path, w.Code)
			}
			close(slow.gate)
			synctest.Wait()
			time.Sleep(time.Second) // until the last pause is over
		})
	}
}

// TestLargeBodies checks that the bodies of one client at a time are read and applied if they are large,
// and that others wait for neither.
func TestLargeBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		h := newShared(api).serve(false)
		list := "[" + strings.Repeat(turnOff+",", 2*smallBody/len(turnOff)) + turnOff + "]"
		body, send := io.Pipe()
		first := httptest.NewRecorder()
		go h.ServeHTTP(first, httptest.NewRequest("POST", "/v1/changes", body))
		if _, err := io.WriteString(send, list[:smallBody+1]); err != nil {
			t.Fatal(err)
		}
		if w := ask(h, "POST", "/v1/changes", list); w.Code != 503 ||
			!strings.Contains(w.Body.String(), "try again") || api.set != nil {
			t.Errorf("another large list: got %d %s", w.Code, w.Body)
		}
		if w := ask(h, "POST", "/v1/changes", turnOff); w.Code != 200 || len(api.set) != 1 {
			t.Errorf("one change: got %d %s", w.Code, w.Body)
		}
		if _, err := io.WriteString(send, list[smallBody+1:]); err != nil {
			t.Fatal(err)
		}
		send.Close()
		synctest.Wait()
		if want := strings.Count(list, "{"); first.Code != 200 || len(api.set) != want {
			t.Errorf("the first list: got %d and %d changes, want %d", first.Code, len(api.set), want)
		}
		slow := &slowWriter{ResponseRecorder: httptest.NewRecorder(), gate: make(chan struct{})}
		go h.ServeHTTP(slow, httptest.NewRequest("POST", "/v1/changes", strings.NewReader(list)))
		synctest.Wait()
		if w := ask(h, "POST", "/v1/changes", list); w.Code != 503 { // the answer is as large
			t.Errorf("while the first answer is not read: got %d", w.Code)
		}
		close(slow.gate)
		synctest.Wait()
		body, send = io.Pipe()
		defer send.Close()
		long := httptest.NewRequest("POST", "/v1/changes", body)
		long.ContentLength = maxBody + 1
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, long); w.Code != 413 { // nothing was read
			t.Errorf("a length above the limit: got %d", w.Code)
		}
	})
}

// slowWriter is a client that reads nothing until gate is closed.
type slowWriter struct {
	*httptest.ResponseRecorder
	gate chan struct{}
}

func (s *slowWriter) Write(b []byte) (int, error) {
	<-s.gate
	return s.ResponseRecorder.Write(b)
}

// FuzzParseChanges parses bodies. Accepted changes are valid, and end in the future.
func FuzzParseChanges(f *testing.F) {
	f.Add([]byte(turnOff))
	f.Add([]byte(`[{"kind":"customer","name":"a","plan":"b","parameters":{"rate":"1mbit"},"for":"1h"},{"kind":"link","name":"l","reset":true}]`))
	f.Add([]byte(`{"kind":"queue","name":"q","parameters":{"rate":"1mbit"},"until":"2030-01-01T00:00:00Z"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		now := time.Unix(1.7e9, 0)
		list, err := parseChanges(body, now)
		if err != nil {
			if status := httpStatus(err); status < 400 || status >= 500 {
				t.Errorf("%v: status %d", err, status)
			}
			return
		}
		for i := range list {
			if err := list[i].Check(); err != nil {
				t.Error(err)
			}
			if until := list[i].Until; !until.IsZero() && !now.Before(until) {
				t.Errorf("ends at %v", until)
			}
		}
		if ListChanges(list) == nil {
			t.Error("no list")
		}
	})
}
