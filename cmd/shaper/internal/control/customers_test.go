package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// TestCustomerRequests checks the status of requests for customers, and the request that the API gets.
func TestCustomerRequests(t *testing.T) {
	minute := time.Minute
	zero := time.Duration(0)
	put := func(name string, cells map[string]string) []live.CustomerItem {
		return []live.CustomerItem{{Name: name, Do: live.Put, Cells: cells}}
	}
	for _, test := range []struct {
		method, path, match, body string
		status                    int
		want                      []live.CustomerItem
	}{
		{"POST", "", "", `{"name":"a","plan":"p","address":"192.0.2.1"}`, 200, put("a", map[string]string{"plan": "p", "address": "192.0.2.1"})},
		{"POST", "", "", `[{"name":"a","parameters":{"rate":"5mbit"},"quota":"1GB"}]`, 200, put("a", map[string]string{"rate": "5mbit", "quota": "1GB"})},
		{"POST", "", "", `[{"name":"a","do":"remove"},{"name":"b","do":"reset","version":"7"}]`, 200, []live.CustomerItem{
			{Name: "a", Do: live.Remove, Cells: map[string]string{}}, {Name: "b", Do: live.Reset, Cells: map[string]string{}, Match: "7"},
		}},
		{"POST", "", "", `{"name":"a","idle":"1min"}`, 200, []live.CustomerItem{{Name: "a", Do: live.Put, Cells: map[string]string{}, Idle: &minute}}},
		{"POST", "", "", `{"name":"a","do":"add"}`, 400, nil},
		{"POST", "", "", `{"name":"a","do":"remove","plan":"p"}`, 400, nil},
		{"POST", "", "", `{"name":"a","parameters":{"address":"192.0.2.1"}}`, 400, nil},
		{"POST", "", "", `{"name":"a","idle":"10m"}`, 400, nil},
		{"POST", "", "", `{"name":"a","idle":"10ms"}`, 400, nil},
		{"POST", "", "", `{"name":"a","color":"red"}`, 400, nil},
		{"POST", "", "", `{"name":"a","name":"b"}`, 400, nil},
		{"POST", "", "", `[]`, 400, nil},
		{"POST", "", "", ``, 400, nil},
		{"POST", "?reset=true", "", `{"name":"a"}`, 400, nil},
		{"PUT", "", "", `{"name":"a"}`, 405, nil},
		{"PATCH", "/a", "", `{"plan":"p"}`, 200, []live.CustomerItem{{Name: "a", Do: live.Patch, Cells: map[string]string{"plan": "p"}}}},
		{"PATCH", "/a", `"x"`, `{"quota":"","idle":"0"}`, 200, []live.CustomerItem{{Name: "a", Do: live.Patch, Cells: map[string]string{"quota": ""}, Idle: &zero, Match: "x"}}},
		{"PATCH", "/a", "x", `{"plan":"p"}`, 400, nil},
		{"PATCH", "/a", `"x", "y"`, `{"plan":"p"}`, 400, nil},
		{"PATCH", "/a", "", `{"name":"b","plan":"p"}`, 400, nil},
		{"PATCH", "/a", "", `{"do":"remove"}`, 400, nil},
		{"PATCH", "/a", "", `[{"plan":"p"}]`, 400, nil},
		{"DELETE", "/a%20b", "*", ``, 200, []live.CustomerItem{{Name: "a b", Do: live.Remove, Match: "*"}}},
		{"DELETE", "/a?reset=true", "", ``, 200, []live.CustomerItem{{Name: "a", Do: live.Reset}}},
		{"DELETE", "/a?reset=1", "", ``, 400, nil},
		{"DELETE", "/a", "", `{}`, 400, nil},
		{"GET", "?limit=0", "", ``, 400, nil},
		{"GET", "?limit=1001", "", ``, 400, nil},
		{"GET", "?added=yes", "", ``, 400, nil},
		{"GET", "?address=x", "", ``, 400, nil},
		{"GET", "?top=3&limit=3", "", ``, 400, nil},
	} {
		f := &fakeAPI{}
		w := httptest.NewRecorder()
		q := httptest.NewRequest(test.method, "/v1/customers"+test.path, strings.NewReader(test.body))
		if test.match != "" {
			q.Header.Set("If-Match", test.match)
		}
		newShared(f).serve(false).ServeHTTP(w, q)
		if w.Code != test.status || !reflect.DeepEqual(f.request.Items, test.want) {
			t.Errorf("%s %s %s: got %d, %s and %+v, want %d and %+v", test.method, test.path, test.body, w.Code, w.Body,
				f.request.Items, test.status, test.want)
		}
		if test.status == 200 && w.Header().Get("ETag") == "" {
			t.Errorf("%s %s: no ETag", test.method, test.path)
		}
	}
}

// TestCustomerErrors checks the status of errors, and the number of the wrong item.
func TestCustomerErrors(t *testing.T) {
	item := func(err error, of int) error { return &live.CustomerError{Item: of - 1, Of: of, Err: err} }
	for _, test := range []struct {
		err    error
		status int
		item   string
	}{
		{item(&policyfile.CustomerError{Name: "a", Err: errors.New("wrong")}, 3), 422, `"item":3`},
		{item(&policyfile.CustomerError{Name: "a", Err: errors.New("wrong")}, 1), 422, `wrong"}`},
		{item(fmt.Errorf("a: %w", live.ErrVersion), 2), 412, `"item":2`},
		{fmt.Errorf("the list: %w", live.ErrVersion), 412, `since"}`},
		{item(fmt.Errorf("a: %w", live.ErrNoCustomer), 1), 404, `such customer"}`},
		{policyfile.ErrNoTable, 422, `"}`},
		{live.ErrBusy, 503, `"}`},
		{errors.New("disk full"), 500, `full"}`},
	} {
		w := ask(newShared(&fakeAPI{err: test.err}).serve(false), "POST", "/v1/customers", `{"name":"a","plan":"p"}`)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.item) {
			t.Errorf("%v: got %d and %s, want %d and %s", test.err, w.Code, w.Body, test.status, test.item)
		}
	}
	for _, method := range []string{"POST", "PATCH", "DELETE"} {
		path := map[bool]string{true: "/v1/customers", false: "/v1/customers/a"}[method == "POST"]
		if w := ask(newShared(&fakeAPI{}).serve(true), method, path, ""); w.Code != http.StatusForbidden {
			t.Errorf("%s at a socket for reading: %d", method, w.Code)
		}
	}
}

// TestCustomerPage checks the query that the API gets for a page, and the answer.
func TestCustomerPage(t *testing.T) {
	f := &fakeAPI{}
	w := ask(newShared(f).serve(true), "GET",
		"/v1/customers?name=z&filter=x&plan=p&address=192.0.2.0/24&added=false&after=y&limit=5", "")
	no := false
	want := live.CustomerQuery{
		After: "y", Limit: 5, Exact: "z", Name: "x", Plan: "p", Address: "192.0.2.0/24", Added: &no,
	}
	if !reflect.DeepEqual(f.query, want) {
		t.Errorf("got %+v, want %+v", f.query, want)
	}
	const body = `{"customers":[{"name":"a","plan":"p","parameters":{"rate":"5mbit"},"source":"file","version":"3"}],"next":"a","columns":["address"],"version":"7"}`
	if got := strings.TrimSpace(w.Body.String()); got != body || w.Header().Get("ETag") != `"7"` {
		t.Errorf("got  %s\nwant %s", got, body)
	}
}

// TestCustomerForms checks that terms and changes are read again as they were written.
func TestCustomerForms(t *testing.T) {
	for _, idle := range []time.Duration{
		0, time.Second, 90 * time.Second, 10 * time.Minute, 1500 * time.Millisecond, 36 * time.Hour,
		1<<40 + 1,
	} {
		terms := live.CustomerTerms{
			Name: "a", Cells: map[string]string{"plan": "p", "rate": "5mbit", "quota": "1GB", "cvlan": "7"},
			Idle: idle, Added: true, Since: time.Unix(1, 0), Author: changes.Author{User: "u", With: "w"},
			Version: "3",
		}
		form := TermsOf(&terms)
		if got, err := form.Terms(); err != nil || !reflect.DeepEqual(*got, terms) {
			t.Errorf("terms: got %+v, want %+v: %v", got, terms, err)
		}
		item := live.CustomerItem{
			Name: "a", Do: live.Patch, Cells: map[string]string{"plan": "", "down": "5mbit", "mark": "7"},
			Idle: &idle, Match: "3",
		}
		text, err := json.Marshal(RequestOf(&item))
		if err != nil {
			t.Fatal(err)
		}
		want := []live.CustomerItem{item}
		if got, err := ParseCustomers(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("change %s: got %+v, want %+v: %v", text, got, item, err)
		}
	}
}
