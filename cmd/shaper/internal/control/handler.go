package control

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
)

// OpenAPI is the description of the API in the format of OpenAPI 3.1.
//
//go:embed openapi.json
var OpenAPI []byte

// Limits of requests.
const (
	maxBody     = 16 << 20               // bytes: as many as changes.MaxList need
	smallBody   = 64 << 10               // bytes; one client at a time may send more
	defaultTop  = 20                     // customers in an answer
	largeList   = 10_000                 // one client of a socket at a time may read more rows
	freshFor    = 200 * time.Millisecond // age up to which the same status and counters are sent again
	restFactor  = 4                      // reading customers takes a fifth of the time at most
	contentJSON = "application/json"
)

// handler answers requests of a socket.
type handler struct {
	shared
	pattern   string // of interfaces; "": all
	sending   turn   // for clients sending a large list
	receiving turn   // for clients receiving a large list
	next      turn   // for clients that read customers, or wait for shared.reading
}

// shared is what the handlers of all sockets share.
type shared struct {
	api     API
	answers *answers
	reading turn          // for sockets of which a client reads customers
	last    *atomic.Int32 // number of requests after which the process may end
}

func newShared(api API) shared {
	return shared{api, newAnswers(), make(turn, 1), new(atomic.Int32)}
}

// endpoint answers a request. After an error, nothing was sent.
type endpoint func(*handler, http.ResponseWriter, *http.Request) error

// route is a path of the API with its methods.
type route struct {
	path    string // in the syntax of http.ServeMux and OpenAPI
	methods map[string]endpoint
	query   map[string][]string // names of parameters, by method
	general bool                // it is not about interfaces
}

// interfaceParameter is the parameter that chooses interfaces.
const interfaceParameter = "interface"

var routes = []route{
	{path: "/v1/status", methods: get((*handler).getStatus), query: map[string][]string{http.MethodGet: {"view"}}},
	{path: "/v1/stats", methods: get((*handler).getStats), query: map[string][]string{http.MethodGet: {"view"}}},
	{path: "/v1/links", methods: get((*handler).getLinks), query: map[string][]string{http.MethodGet: {"view"}}},
	{path: "/v1/customers", methods: map[string]endpoint{
		http.MethodGet: (*handler).getCustomers, http.MethodPost: (*handler).postCustomers,
	}, query: map[string][]string{http.MethodGet: append([]string{"top", "by"}, pageParameters...)}},
	{path: "/v1/customers/{name}", methods: map[string]endpoint{
		http.MethodGet: (*handler).getCustomer, http.MethodPatch: (*handler).patchCustomer,
		http.MethodDelete: (*handler).deleteCustomer,
	}, query: map[string][]string{http.MethodDelete: {"reset"}}},
	{path: "/v1/changes", methods: map[string]endpoint{
		http.MethodGet: (*handler).getChanges, http.MethodPost: (*handler).postChanges,
	}},
	{path: "/v1/reload", methods: post((*handler).postReload), query: map[string][]string{http.MethodPost: {"confirm"}}},
	{path: "/v1/confirm", methods: post((*handler).postConfirm)},
	{
		path: "/v1/detach", methods: post((*handler).postDetach),
		query: map[string][]string{http.MethodPost: {"direction", "all"}},
	},
	{path: "/v1/openapi.json", methods: get((*handler).getOpenAPI), general: true},
}

func get(f endpoint) map[string]endpoint { return map[string]endpoint{http.MethodGet: f} }

func post(f endpoint) map[string]endpoint { return map[string]endpoint{http.MethodPost: f} }

// Route is a path with its methods and the names of its parameters.
type Route struct {
	Path    string
	Methods []string
	Query   map[string][]string // by method
}

// Routes returns all paths of the API.
func Routes() (out []Route) {
	for _, r := range routes {
		row := Route{Path: r.path, Query: r.query}
		if !r.general {
			row.Query = map[string][]string{}
			for method := range r.methods {
				row.Query[method] = append(slices.Clone(r.query[method]), interfaceParameter)
			}
		}
		for method := range r.methods {
			row.Methods = append(row.Methods, method)
		}
		slices.Sort(row.Methods)
		out = append(out, row)
	}
	return out
}

// serve returns the handler of a socket. Its clients do not wait for those of other sockets, except for one
// that reads customers.
func (s shared) serve(readOnly bool) http.Handler {
	h := &handler{s, "", make(turn, 1), make(turn, 1), make(turn, 1)}
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.path, func(w http.ResponseWriter, q *http.Request) {
			if err := h.route(&r, readOnly, w, q); err != nil {
				respondError(w, err)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		respondError(w,
			&InputError{http.StatusNotFound, fmt.Errorf("there is no %q: see /v1/openapi.json", q.URL.Path)})
	})
	return mux
}

// route answers a request for a path, as an endpoint does.
func (h *handler) route(r *route, readOnly bool, w http.ResponseWriter, q *http.Request) error {
	method := q.Method
	if method == http.MethodHead {
		method = http.MethodGet // the server sends no body
	}
	f := r.methods[method]
	if f == nil {
		var allowed []string
		for m := range r.methods {
			allowed = append(allowed, m)
		}
		slices.Sort(allowed)
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return &InputError{
			http.StatusMethodNotAllowed,
			fmt.Errorf("%s allows %s only", r.path, strings.Join(allowed, " and ")),
		}
	}
	if readOnly && method != http.MethodGet {
		return &InputError{
			http.StatusForbidden, errors.New("this socket is for reading: use that of --control"),
		}
	}
	values, err := url.ParseQuery(q.URL.RawQuery)
	if err != nil {
		return badRequest("query: %w", err)
	}
	for name, value := range values {
		known := slices.Contains(r.query[method], name) || name == interfaceParameter && !r.general
		if !known || len(value) > 1 {
			return badRequest("parameter %q is unknown, or there twice", name)
		}
	}
	if values.Has(interfaceParameter) && !r.general {
		if h, err = h.of(q.Context(), values.Get(interfaceParameter)); err != nil {
			return err
		}
	}
	return f(h, w, q)
}

// of returns a handler for the interfaces chosen by a pattern.
func (h *handler) of(ctx context.Context, pattern string) (*handler, error) {
	if pattern == "" {
		return nil, badRequest("parameter interface is empty: want a name, or a pattern such as veth*")
	}
	api, err := h.api.Of(ctx, pattern)
	if err != nil {
		return nil, err
	}
	out := *h
	out.api, out.pattern = api, pattern
	return &out, nil
}

func (h *handler) getCustomers(w http.ResponseWriter, q *http.Request) error {
	if wantsPage(q.URL.Query()) {
		return h.getPage(w, q)
	}
	top, by := defaultTop, q.URL.Query().Get("by")
	if text := q.URL.Query().Get("top"); text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return badRequest("top %q: want a number of customers; 0: all", text)
		}
		top = int(n)
	}
	switch by {
	case "":
		by = "bytes"
	case "bytes", "dropped", "rate":
	default:
		return badRequest("by %q: want bytes, dropped or rate", by)
	}
	if top == 0 || top > largeList {
		rows, _, err := h.api.Sizes(q.Context())
		if err != nil {
			return err
		}
		if rows > largeList {
			if err := h.receiving.take(q.Context(), patience); err != nil {
				return err
			}
			defer h.receiving.end()
		}
	}
	write, err := h.readCustomers(q.Context(), top, by)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", contentJSON)
	if err := write(w); err != nil {
		panic(http.ErrAbortHandler) // a part was sent
	}
	return nil
}

// readCustomers reads the list of customers, one client at a time. A pause follows, because
// reading needs a lock that packets need, too, or time on the CPU. Sockets alternate: one client of each
// waits for the other socket, for one reading and its pause.
func (h *handler) readCustomers(ctx context.Context, top int, by string) (func(io.Writer) error, error) {
	if err := h.next.take(ctx, patience); err != nil {
		return nil, err
	}
	if err := h.reading.take(ctx, answerTime); err != nil {
		h.next.end()
		return nil, err
	}
	begin := time.Now()
	defer func() { // also if Customers panics
		time.AfterFunc(restFactor*time.Since(begin), func() {
			h.reading.end() // first, to give the other socket its turn
			h.next.end()
		})
	}()
	return h.api.Customers(ctx, top, by)
}

func (h *handler) getCustomer(w http.ResponseWriter, q *http.Request) error {
	customer, err := h.api.Customer(q.Context(), q.PathValue("name"))
	if err != nil {
		return err
	}
	page, err := h.api.CustomerPage(q.Context(), live.CustomerQuery{Exact: q.PathValue("name")})
	if err == nil && len(page.Customers) == 1 {
		setVersion(w, page.Customers[0].Version)
	}
	return respondValue(w, customer, err)
}

func (h *handler) getChanges(w http.ResponseWriter, q *http.Request) error {
	_, n, err := h.api.Sizes(q.Context())
	if err != nil {
		return err
	}
	if n > largeList {
		if err := h.receiving.take(q.Context(), patience); err != nil {
			return err
		}
		defer h.receiving.end()
	}
	list, err := h.api.Changes(q.Context())
	return respondValue(w, ListStates(list, time.Now()), err)
}

// readBody reads the body of a request. release must be called after the answer, which may be as large.
func (h *handler) readBody(w http.ResponseWriter, q *http.Request) (text []byte, release func(), err error) {
	release = func() {}
	if q.ContentLength > maxBody {
		return nil, release, errBody
	}
	in := http.MaxBytesReader(w, q.Body, maxBody)
	var body bytes.Buffer
	_, err = io.CopyN(&body, in, smallBody)
	if err == nil { // more may follow
		if err := h.sending.take(q.Context(), patience); err != nil {
			return nil, release, err
		}
		release = h.sending.end
		_, err = body.ReadFrom(in)
	}
	if errors.As(err, new(*http.MaxBytesError)) {
		return nil, release, errBody
	} else if err != nil && !errors.Is(err, io.EOF) {
		return nil, release, badRequest("body: %w", err)
	}
	return body.Bytes(), release, nil
}

func (h *handler) postChanges(w http.ResponseWriter, q *http.Request) error {
	text, release, err := h.readBody(w, q)
	defer release()
	if err != nil {
		return err
	}
	now := time.Now()
	list, err := parseChanges(text, now)
	if err != nil {
		return err
	}
	by := author(q)
	for i := range list {
		list[i].Since, list[i].Author = now.Round(0), by
	}
	err = h.api.Set(q.Context(), list)
	h.answers.forget()
	var unkept *changes.UnkeptError
	if errors.As(err, &unkept) { // as the status says
		w.Header().Set(WarningHeader, strings.Join(strings.Fields(unkept.Error()), " "))
		err = nil
	}
	return respondValue(w, ListChanges(list), err)
}

var errBody = &InputError{
	http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than %d MiB", maxBody>>20),
}

func (h *handler) getOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	return respond(w, OpenAPI, nil)
}

func encode(value any, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err = e.Encode(value)
	return b.Bytes(), err
}

func respondValue(w http.ResponseWriter, value any, err error) error {
	body, err := encode(value, err)
	return respond(w, body, err)
}

func respond(w http.ResponseWriter, body []byte, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", contentJSON)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client may be gone
	return nil
}

// Error is the answer to a failed request.
type Error struct {
	Error string `json:"error"`
	Item  int    `json:"item,omitempty"` // number of the wrong item of a list, from 1
}

func respondError(w http.ResponseWriter, err error) {
	out := Error{Error: err.Error()}
	var item *live.CustomerError
	if errors.As(err, &item) && item.Of > 1 {
		out.Item = item.Item + 1
	}
	body, _ := encode(out, nil) // text can be encoded
	w.Header().Set("Content-Type", contentJSON)
	w.WriteHeader(httpStatus(err))
	_, _ = w.Write(body)
}
