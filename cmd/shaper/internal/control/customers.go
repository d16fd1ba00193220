package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/strictjson"
)

// CustomerCells are the cells of a customer's row in a file of customers. Several addresses are separated by
// blanks.
type CustomerCells = CellsOf[string]

// CellsOf are CustomerCells, or with *string those of a request, where an empty cell is not a missing one.
type CellsOf[T any] struct {
	Address T `json:"address,omitempty"`
	VLAN    T `json:"vlan,omitempty"`
	SVLAN   T `json:"svlan,omitempty"`
	CVLAN   T `json:"cvlan,omitempty"`
	MAC     T `json:"mac,omitempty"`
	VNI     T `json:"vni,omitempty"`
	TEID    T `json:"teid,omitempty"`
	Mark    T `json:"mark,omitempty"`
	Cgroup  T `json:"cgroup,omitempty"`
	Plan    T `json:"plan,omitempty"`
	// own parameters, in the syntax of policies, such as rate: 50mbit
	Parameters map[string]string `json:"parameters,omitempty"`
	Quota      T                 `json:"quota,omitempty"` // own limit, such as 500GB
}

// columns returns the cells other than Parameters, by column.
func (c *CellsOf[T]) columns() map[string]*T {
	return map[string]*T{
		"address": &c.Address, "vlan": &c.VLAN, "svlan": &c.SVLAN, "cvlan": &c.CVLAN, "mac": &c.MAC,
		"vni": &c.VNI, "teid": &c.TEID, "mark": &c.Mark, "cgroup": &c.Cgroup, "plan": &c.Plan, "quota": &c.Quota,
	}
}

// CustomerTerms is the JSON form of the terms of a customer.
type CustomerTerms struct {
	Name string `json:"name"`
	CustomerCells
	Idle    string    `json:"idle,omitempty"` // it is removed after this time without a packet; "": never
	Source  string    `json:"source"`         // "added", or "file": the policy's file of customers
	Since   time.Time `json:"since,omitzero"` // when it was added or replaced
	By      string    `json:"by,omitempty"`   // the tool: "shaper customer" or "the API"
	User    string    `json:"user,omitempty"` // who added it
	Version string    `json:"version"`        // the ETag of the customer
}

// TermsOf returns the JSON form of terms.
func TermsOf(t *live.CustomerTerms) CustomerTerms {
	out := CustomerTerms{
		Name: t.Name, Source: "file", Since: t.Since, By: t.Author.With, User: t.Author.User, Version: t.Version,
	}
	if t.Added {
		out.Source = "added"
	}
	if t.Idle > 0 {
		out.Idle = formatIdle(t.Idle)
	}
	columns := out.columns()
	for name, cell := range t.Cells {
		if at := columns[name]; at != nil {
			*at = cell
			continue
		}
		if out.Parameters == nil {
			out.Parameters = map[string]string{}
		}
		out.Parameters[name] = cell
	}
	return out
}

// CustomerPage is the JSON form of a page of customers.
type CustomerPage struct {
	Customers []CustomerTerms `json:"customers"`
	Next      string          `json:"next,omitempty"` // value of after for the next page; "": there is none
	Columns   []string        `json:"columns"`        // columns of a file of customers for their keys
	Version   string          `json:"version"`        // of the list of added and removed customers: its ETag
}

// PageOf returns the JSON form of a page.
func PageOf(p *live.CustomerPage) CustomerPage {
	out := CustomerPage{
		Customers: []CustomerTerms{}, Next: p.Next, Columns: append([]string{}, p.Columns...),
		Version: p.Version,
	}
	for _, t := range p.Customers {
		out.Customers = append(out.Customers, TermsOf(t))
	}
	return out
}

// CustomerChange is the JSON form of a change of a customer.
type CustomerChange struct {
	Name string `json:"name"`
	Do   string `json:"do,omitempty"` // put, patch, remove or reset; "": put
	CustomerCells
	Idle    string `json:"idle,omitempty"`    // duration; 0: never
	Version string `json:"version,omitempty"` // version that the customer must have; *: it must exist
}

// customerRequest is a CustomerChange in a request. A field that is there, but empty, removes a parameter.
type customerRequest struct {
	Name *string `json:"name"`
	Do   string  `json:"do"`
	CellsOf[*string]
	Idle    *string `json:"idle"`
	Version string  `json:"version"`
}

// item returns the item of a request.
func (r *customerRequest) item() (out live.CustomerItem, err error) {
	out = live.CustomerItem{Do: live.CustomerVerb(r.Do), Cells: map[string]string{}, Match: r.Version}
	switch out.Do {
	case "":
		out.Do = live.Put
	case live.Put, live.Patch, live.Remove, live.Reset:
	default:
		return out, fmt.Errorf("do %q: want put, patch, remove or reset", r.Do)
	}
	if r.Name != nil {
		out.Name = *r.Name
	}
	columns := r.columns()
	for name, cell := range columns {
		if *cell != nil {
			out.Cells[name] = **cell
		}
	}
	for name := range r.Parameters {
		if columns[name] != nil || name == "customer" || name == "" {
			return out, fmt.Errorf("parameters: %q is not a parameter of a plan", name)
		}
	}
	maps.Copy(out.Cells, r.Parameters)
	if r.Idle != nil {
		idle, err := ParseIdle(*r.Idle)
		if err != nil {
			return out, err
		}
		out.Idle = &idle
	}
	if (out.Do == live.Remove || out.Do == live.Reset) && (len(out.Cells) > 0 || out.Idle != nil) {
		return out, fmt.Errorf("do %q has nothing but a name and a version", r.Do)
	}
	return out, nil
}

// RequestOf returns the JSON form of a change of a customer, as a client sends it. An empty cell removes a
// parameter.
func RequestOf(i *live.CustomerItem) map[string]any {
	out := map[string]any{"name": i.Name, "do": i.Do}
	parameters, columns := map[string]string{}, new(CustomerCells).columns()
	for name, cell := range i.Cells {
		if columns[name] != nil {
			out[name] = cell
		} else {
			parameters[name] = cell
		}
	}
	if len(parameters) > 0 {
		out["parameters"] = parameters
	}
	if i.Idle != nil {
		out["idle"] = formatIdle(*i.Idle)
	}
	if i.Match != "" {
		out["version"] = i.Match
	}
	return out
}

// Terms returns the terms of which t is the JSON form.
func (t *CustomerTerms) Terms() (*live.CustomerTerms, error) {
	idle, err := ParseIdle(t.Idle)
	out := &live.CustomerTerms{
		Name: t.Name, Cells: maps.Clone(t.Parameters), Added: t.Source == "added", Idle: idle, Since: t.Since,
		Author: changes.Author{User: t.User, With: t.By}, Version: t.Version,
	}
	if out.Cells == nil {
		out.Cells = map[string]string{}
	}
	for name, cell := range t.columns() {
		if *cell != "" {
			out.Cells[name] = *cell
		}
	}
	return out, err
}

// ParseIdle reads the time after which a customer without packets is removed; 0 or an empty text: never.
func ParseIdle(text string) (time.Duration, error) {
	if text == "" || text == "0" {
		return 0, nil
	}
	idle, err := policyfile.ParseDuration(text)
	if err == nil && idle < time.Second {
		err = errors.New("want at least 1s, or 0 for never")
	}
	if err != nil {
		return 0, fmt.Errorf("idle: %w", err)
	}
	return idle, nil
}

// formatIdle writes a time as ParseIdle reads it.
func formatIdle(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	return policyfile.FormatDuration(d, time.Hour)
}

// CustomerEffect is the JSON form of the effect of a change of a customer.
type CustomerEffect struct {
	Name    string `json:"name"`
	Done    string `json:"done"`              // added, replaced, removed or unchanged
	Version string `json:"version,omitempty"` // of the customer now; "": there is none
}

// CustomerEffects is the answer to changes of customers.
type CustomerEffects struct {
	Customers []CustomerEffect `json:"customers"` // in the order of the changes
	Version   string           `json:"version"`   // of the list of added and removed customers: its ETag
}

// EffectsOf returns the JSON form of an answer.
func EffectsOf(reply *live.CustomerReply) CustomerEffects {
	out := CustomerEffects{Customers: []CustomerEffect{}, Version: reply.Version}
	for _, r := range reply.Results {
		out.Customers = append(out.Customers, CustomerEffect{r.Name, string(r.Done), r.Version})
	}
	return out
}

// ParseCustomers reads a change of a customer, or a list of changes. The error is an *InputError.
func ParseCustomers(text []byte) ([]live.CustomerItem, error) {
	var list []customerRequest
	var into any = &list
	text = bytes.TrimLeft(text, " \t\r\n")
	if !bytes.HasPrefix(text, []byte("[")) {
		list = make([]customerRequest, 1)
		into = &list[0]
	}
	if len(text) == 0 {
		return nil, badRequest("the body is empty: want a customer, or a list of customers")
	}
	err := strictjson.Unmarshal(text, into, changes.MaxList)
	switch {
	case errors.As(err, new(*strictjson.TooManyError)):
		return nil, &InputError{
			http.StatusRequestEntityTooLarge,
			fmt.Errorf("more than %d customers: send several lists", changes.MaxList),
		}
	case err != nil:
		return nil, badRequest("the body is not a customer, or a list of customers: %w", err)
	case len(list) == 0:
		return nil, badRequest("the list of customers is empty")
	}
	out := make([]live.CustomerItem, len(list))
	for i := range list {
		if out[i], err = list[i].item(); err != nil {
			return nil, &InputError{
				http.StatusBadRequest, &live.CustomerError{Item: i, Of: len(list), Err: err},
			}
		}
	}
	return out, nil
}

// match returns the version in If-Match; "" without it.
func match(q *http.Request) (string, error) {
	text := q.Header.Get("If-Match")
	if text == "" || text == live.AnyVersion {
		return text, nil
	}
	version, ok := strings.CutPrefix(text, `"`)
	version, end := strings.CutSuffix(version, `"`)
	if !ok || !end || version == "" || strings.Contains(version, `"`) {
		return "", badRequest("If-Match %q: want one version in quotes, or *", text)
	}
	return version, nil
}

func setVersion(w http.ResponseWriter, version string) {
	if version != "" {
		w.Header().Set("ETag", `"`+version+`"`)
	}
}

// changeCustomers makes changes, and returns their effects.
func (h *handler) changeCustomers(
	ctx context.Context, items []live.CustomerItem, list string,
) (live.CustomerReply, error) {
	return h.api.ChangeCustomers(ctx, live.CustomerRequest{
		Items: items, Match: list, Author: changes.Author{User: userOf(ctx), With: "the API"},
	})
}

func (h *handler) postCustomers(w http.ResponseWriter, q *http.Request) error {
	version, err := match(q)
	if err != nil {
		return err
	}
	if version == live.AnyVersion {
		version = "" // there is always a list
	}
	text, release, err := h.readBody(w, q)
	defer release()
	if err != nil {
		return err
	}
	items, err := ParseCustomers(text)
	if err != nil {
		return err
	}
	reply, err := h.changeCustomers(q.Context(), items, version)
	if err != nil {
		return err
	}
	setVersion(w, reply.Version)
	return respondValue(w, EffectsOf(&reply), nil)
}

func (h *handler) patchCustomer(w http.ResponseWriter, q *http.Request) error {
	text, release, err := h.readBody(w, q)
	defer release()
	if err != nil {
		return err
	}
	if text = bytes.TrimSpace(text); bytes.HasPrefix(text, []byte("[")) {
		return badRequest("the body is a list: want the changes of one customer")
	}
	items, err := ParseCustomers(text)
	switch {
	case err != nil:
		return err
	case items[0].Name != "" && items[0].Name != q.PathValue("name"):
		return badRequest("the body names customer %q, and the path %q", items[0].Name, q.PathValue("name"))
	case items[0].Do != live.Put && items[0].Do != live.Patch:
		return badRequest("PATCH changes a customer: use DELETE to remove it")
	}
	items[0].Do = live.Patch
	return h.changeOne(w, q, items[0])
}

func (h *handler) deleteCustomer(w http.ResponseWriter, q *http.Request) error {
	item := live.CustomerItem{Do: live.Remove}
	switch text := q.URL.Query().Get("reset"); text {
	case "", "false":
	case "true":
		item.Do = live.Reset
	default:
		return badRequest("reset %q: want true or false", text)
	}
	if n, _ := io.Copy(io.Discard, io.LimitReader(q.Body, 1)); n > 0 {
		return badRequest("DELETE has no body")
	}
	return h.changeOne(w, q, item)
}

// changeOne changes the customer of the path.
func (h *handler) changeOne(w http.ResponseWriter, q *http.Request, item live.CustomerItem) error {
	version, err := match(q)
	if err != nil {
		return err
	}
	if item.Name = q.PathValue("name"); version != "" {
		item.Match = version
	}
	reply, err := h.changeCustomers(q.Context(), []live.CustomerItem{item}, "")
	if err != nil {
		return err
	}
	setVersion(w, reply.Results[0].Version)
	return respondValue(w, EffectsOf(&reply).Customers[0], nil)
}

// pageParameters are the parameters of a page of customers.
var pageParameters = []string{"name", "filter", "plan", "address", "added", "after", "limit"}

// wantsPage reports whether a query is for a page of customers, and not for their counters.
func wantsPage(query url.Values) bool {
	for _, name := range pageParameters {
		if query.Has(name) {
			return true
		}
	}
	return false
}

func (h *handler) getPage(w http.ResponseWriter, q *http.Request) error {
	query := q.URL.Query()
	if query.Has("top") || query.Has("by") {
		return badRequest("top and by are for counters: they cannot be combined with %s",
			strings.Join(pageParameters, ", "))
	}
	in := live.CustomerQuery{
		After: query.Get("after"), Exact: query.Get("name"), Name: query.Get("filter"), Plan: query.Get("plan"),
		Address: query.Get("address"),
	}
	if text := query.Get("limit"); text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil || n == 0 || n > live.MaxCustomerPage {
			return badRequest("limit %q: want a number of customers from 1 to %d", text, live.MaxCustomerPage)
		}
		in.Limit = int(n)
	}
	if text := query.Get("added"); text != "" {
		added, err := strconv.ParseBool(text)
		if err != nil || text != "true" && text != "false" {
			return badRequest("added %q: want true or false", text)
		}
		in.Added = &added
	}
	if in.Address != "" {
		if _, err := policyfile.ParseCustomerAddress(in.Address); err != nil {
			return badRequest("%w", err)
		}
	}
	page, err := h.api.CustomerPage(q.Context(), in)
	if err != nil {
		return err
	}
	setVersion(w, page.Version)
	return respondValue(w, PageOf(&page), nil)
}
