package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

func item(do CustomerVerb, name string, cells ...string) CustomerItem {
	out := CustomerItem{Name: name, Do: do, Cells: map[string]string{}}
	for i := 0; i < len(cells); i += 2 {
		out.Cells[cells[i]] = cells[i+1]
	}
	return out
}

// ask makes one request, and returns what it did to each item.
func ask(c *Changer, items ...CustomerItem) (done string, err error) {
	p := &PendingCustomers{CustomerRequest: CustomerRequest{Items: items}}
	c.changeAll([]*PendingCustomers{p})
	for _, r := range p.Reply.Results {
		done += string(r.Done) + " "
	}
	return strings.TrimSpace(done), p.Err
}

// sameBook compares books as text: times have no location in a file.
func sameBook(a, b customers.Book) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

const someRows = "a,10.0.0.1,slow,\nb,10.0.0.2,slow,\n"

// TestChangeCustomers checks what requests do, one after another.
func TestChangeCustomers(t *testing.T) {
	s := newFakeShaper(changerPolicy(t, "", someRows))
	c := newTestChanger(t, s)
	wrong := CustomerItem{Name: "c", Do: Patch, Cells: map[string]string{"plan": "slow"}, Match: "0"}
	idle := time.Minute
	for i, test := range []struct {
		items []CustomerItem
		want  string // effects, or a part of the error
		state string // plans of the customers a, b, c and d
	}{
		{[]CustomerItem{item(Put, "c", "address", "10.0.0.3", "plan", "fast")}, "added", "slow slow fast -"},
		{[]CustomerItem{item(Put, "c", "address", " 10.0.0.3/32 ", "plan", "fast")}, "unchanged", "slow slow fast -"},
		{[]CustomerItem{item(Put, "c", "address", "10.0.0.3", "plan", "slow")}, "replaced", "slow slow slow -"},
		{[]CustomerItem{item(Patch, "c", "plan", "fast")}, "replaced", "slow slow fast -"},
		{[]CustomerItem{item(Patch, "c", "plan", "fast")}, "unchanged", "slow slow fast -"},
		{[]CustomerItem{{Name: "c", Do: Patch, Idle: &idle}}, "replaced", "slow slow fast -"},
		{[]CustomerItem{item(Patch, "x", "plan", "fast")}, ErrNoCustomer.Error(), "slow slow fast -"},
		{[]CustomerItem{item(Remove, "x")}, ErrNoCustomer.Error(), "slow slow fast -"},
		{[]CustomerItem{wrong}, ErrVersion.Error(), "slow slow fast -"},
		{[]CustomerItem{item(Put, "d", "plan", "slow"), item(Put, "d", "plan", "fast")}, "item 2: customer \"d\" is named twice", "slow slow fast -"},
		{
			[]CustomerItem{item(Put, "d", "plan", "slow"), item(Put, "e", "address", "10.0.0.3", "plan", "fast")},
			`item 2: customer "e": 10.0.0.3 belongs to customer "c"`, "slow slow fast -",
		},
		{[]CustomerItem{item(Put, "a", "address", "10.0.0.1", "plan", "fast"), item(Remove, "b")}, "replaced removed", "fast - fast -"},
		{[]CustomerItem{item(Reset, "a"), item(Reset, "b"), item(Reset, "c")}, "replaced added removed", "slow slow - -"},
		{[]CustomerItem{item(Reset, "a")}, "unchanged", "slow slow - -"},
		{[]CustomerItem{item("turn", "a")}, `unknown change "turn"`, "slow slow - -"},
		{[]CustomerItem{item(Put, "", "plan", "slow")}, "name of the customer is missing", "slow slow - -"},
	} {
		done, err := ask(c, test.items...)
		if err != nil {
			done = err.Error()
		}
		if !strings.HasSuffix(done, test.want) {
			t.Errorf("request %d: got %q, want %q", i, done, test.want)
		}
		state := ""
		for _, name := range []string{"a", "b", "c", "d"} {
			plan := s.plans[name]
			if plan == "" {
				plan = "-"
			}
			state += " " + plan
		}
		if state[1:] != test.state {
			t.Errorf("request %d: plans%s, want %s", i, state, test.state)
		}
		kept, err := customers.Read(c.Customers.Path)
		if err != nil || !sameBook(kept, c.Customers.Book) {
			t.Errorf("request %d: the file has %v, the book %v; error %v", i, kept, c.Customers.Book, err)
		}
	}
}

// TestCustomersVersions checks that of two writers, who both read a version, the second is refused.
func TestCustomersVersions(t *testing.T) {
	c := newTestChanger(t, newFakeShaper(changerPolicy(t, "", someRows)))
	before, err := c.CustomerTerms("a")
	if err != nil {
		t.Fatal(err)
	}
	list := c.Customers.Version()
	for i, want := range []error{nil, ErrVersion} {
		one := item(Patch, "a", "plan", []string{"fast", "slow"}[i])
		one.Match = before.Version
		if _, err := ask(c, one); !errors.Is(err, want) {
			t.Errorf("writer %d: got %v, want %v", i, err, want)
		}
	}
	p := &PendingCustomers{}
	p.Items, p.Match = []CustomerItem{item(Remove, "b")}, list
	q := *p
	q.Match = c.Customers.Version()
	c.changeAll([]*PendingCustomers{p, &q})
	if !errors.Is(p.Err, ErrVersion) || q.Err != nil || q.Reply.Version == q.Match {
		t.Errorf("got %v and %v, version %s after %s", p.Err, q.Err, q.Reply.Version, q.Match)
	}
}

// TestCustomersFail makes requests that the shaper or the file refuses, alone and together with one that is
// possible.
func TestCustomersFail(t *testing.T) {
	for _, test := range []string{"shaper", "no room", "file"} {
		t.Run(test, func(t *testing.T) {
			s := newFakeShaper(changerPolicy(t, "", someRows))
			c := newTestChanger(t, s)
			if _, err := ask(c, item(Put, "c", "address", "10.0.0.3", "plan", "fast")); err != nil {
				t.Fatal(err)
			}
			book, version := maps.Clone(c.Customers.Book), c.Customers.Version()
			refused := errors.New("refused")
			switch test {
			case "shaper":
				s.err = refused
			case "no room":
				s.err = kernel.ErrNoRoom
			case "file":
				err := errors.Join(os.Remove(c.Customers.Path), os.Mkdir(c.Customers.Path, 0o700))
				if err != nil {
					t.Fatal(err)
				}
			}
			_, err := ask(c, item(Put, "d", "address", "10.0.0.4", "plan", "fast"), item(Remove, "a"))
			if test == "no room" {
				if err != nil || s.replaced != 1 || s.plans["d"] != "fast" || s.plans["a"] != "" {
					t.Errorf("error %v, %d reloads, plans %v", err, s.replaced, s.plans)
				}
				return
			}
			want := map[string]string{"a": "slow", "b": "slow", "c": "fast"}
			if err == nil || !maps.Equal(s.plans, want) {
				t.Errorf("error %v, plans %v, want %v", err, s.plans, want)
			}
			if !maps.Equal(book, c.Customers.Book) || version != c.Customers.Version() {
				t.Errorf("the book changed: %v", c.Customers.Book)
			}
			if terms, _ := c.CustomerTerms("d"); terms != nil {
				t.Errorf("customer d has terms %v", terms)
			}
			if test == "file" {
				return
			}
			if kept, err := customers.Read(c.Customers.Path); err != nil || !sameBook(kept, book) {
				t.Errorf("the file has %v; error %v", kept, err)
			}
			// Of several requests at once only the refused one fails.
			s.err = refused
			p := &PendingCustomers{CustomerRequest: CustomerRequest{Items: []CustomerItem{item(Remove, "a")}}}
			q := &PendingCustomers{CustomerRequest: CustomerRequest{Items: []CustomerItem{item(Remove, "b")}}}
			c.changeAll([]*PendingCustomers{p, q})
			if p.Err != nil || q.Err != nil || len(s.plans) != 1 {
				t.Errorf("errors %v and %v, plans %v", p.Err, q.Err, s.plans)
			}
		})
	}
}

// TestCustomersReload checks the rule of reloads: the file is the base, and changes are on top.
func TestCustomersReload(t *testing.T) {
	s := newFakeShaper(changerPolicy(t, "", someRows))
	c := newTestChanger(t, s)
	if _, err := ask(c, item(Put, "new", "address", "10.0.0.3", "plan", "fast"), item(Remove, "a"),
		item(Put, "b", "address", "10.0.0.2", "plan", "fast")); err != nil {
		t.Fatal(err)
	}
	reload := func(rows string) []error {
		policy := changerPolicy(t, "", rows)
		if err := c.PruneCustomers(policy.Roster().InFile); err != nil {
			t.Fatal(err)
		}
		policy, stale := c.Amend(policy)
		s.use(policy)
		return stale
	}
	for _, test := range []struct {
		rows, want, stale string
	}{
		{someRows, "map[b:fast new:fast]", "[]"}, // a removed customer of the file stays removed
		// a customer of the file with the address of an added one
		{someRows + "d,10.0.0.3,slow,\n", "map[b:fast d:slow new:fast]", `[customer "d": its addresses`},
		{"b,10.0.0.2,slow,\nnew,10.0.0.9,slow,\n", "map[b:fast new:fast]", "[]"}, // a is gone from the file,
		{someRows, "map[a:slow b:fast new:fast]", "[]"},                          // and when it is back, it is new
	} {
		stale := reload(test.rows)
		if got := fmt.Sprint(s.plans); got != test.want || !strings.HasPrefix(fmt.Sprint(stale), test.stale) {
			t.Errorf("%q: customers %s and stale %v, want %s and %s", test.rows, got, stale, test.want, test.stale)
		}
	}
	if terms, _ := c.CustomerTerms("new"); terms == nil || terms.Cells["address"] != "10.0.0.3" {
		t.Errorf("got %+v", terms)
	}
}

// TestCustomersQueue sends requests from many goroutines. All are answered, and the file is written less
// often than there are requests.
func TestCustomersQueue(t *testing.T) {
	s := newFakeShaper(changerPolicy(t, "", ""))
	c := &LockedChanger{Changer: newTestChanger(t, s)}
	var commits int
	commit := func(list []*PendingCustomers) {
		commits++
		time.Sleep(time.Millisecond) // as long as a disk needs
		c.CommitCustomers(list)
	}
	const writers, rounds = 20, 20
	var all sync.WaitGroup
	for w := range writers {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range rounds {
				one := item(Put, fmt.Sprint("w", w), "address", fmt.Sprintf("10.1.%d.%d", w, i), "plan", "slow")
				request := CustomerRequest{Items: []CustomerItem{one}}
				reply, err := c.SubmitCustomers(context.Background(), request, commit)
				if err != nil || len(reply.Results) != 1 {
					t.Errorf("got %v and %v", reply, err)
				}
			}
		}()
	}
	all.Wait()
	if len(c.Customers.Book) != writers || commits > writers*rounds/2 {
		t.Errorf("%d customers after %d commits", len(c.Customers.Book), commits)
	}
	kept, err := customers.Read(c.Customers.Path)
	if err != nil || len(kept) != writers {
		t.Errorf("the file has %d customers; error %v", len(kept), err)
	}
}

// TestIdleCustomers removes customers without packets.
func TestIdleCustomers(t *testing.T) {
	c := newTestChanger(t, newFakeShaper(changerPolicy(t, "", someRows)))
	idle := 10 * time.Minute
	busy, quiet := item(Put, "busy", "plan", "slow"), item(Put, "quiet", "plan", "slow")
	kept := item(Put, "kept", "plan", "slow")
	busy.Idle, quiet.Idle = &idle, &idle
	if _, err := ask(c, busy, quiet, kept); err != nil {
		t.Fatal(err)
	}
	now, packets := time.Now(), int64(0)
	var got []string
	for range 20 {
		now, packets = now.Add(time.Minute), packets+1
		names, err := c.IdleCustomers(now, func(name string) (int64, error) {
			if name == "busy" {
				return packets, nil
			}
			return 7, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, names...); len(got) > 0 {
			break
		}
	}
	if fmt.Sprint(got) != "[quiet]" || time.Until(now) > 12*time.Minute {
		t.Errorf("idle customers %q after %v", got, time.Until(now))
	}
	if _, err := ask(c, item(Remove, "quiet")); err != nil {
		t.Fatal(err)
	}
	names, _ := c.IdleCustomers(now.Add(time.Hour), func(string) (int64, error) {
		packets++
		return packets, nil
	})
	if len(names) > 0 || len(c.idle.known) != 1 {
		t.Errorf("idle customers %q, %d watched", names, len(c.idle.known))
	}
}

// TestCustomerPages reads pages of customers, and compares with a list.
func TestCustomerPages(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var rows strings.Builder
	want := map[string]bool{}
	for i := range 300 {
		name := fmt.Sprintf("x%d", r.IntN(1_000_000))
		if want[name] {
			continue
		}
		want[name] = true
		fmt.Fprintf(&rows, "%s,10.0.%d.%d,%s,\n", name, i>>8, i&255, []string{"slow", "fast"}[i%2])
	}
	c := newTestChanger(t, newFakeShaper(changerPolicy(t, "", rows.String())))
	if _, err := ask(c, item(Put, "y", "address", "10.9.0.0/16", "plan", "slow")); err != nil {
		t.Fatal(err)
	}
	want["y"] = true
	got, last := 0, ""
	for q := (CustomerQuery{Limit: 7}); ; {
		page, err := c.CustomerPage(q)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range page.Customers {
			if got++; one.Name <= last || !want[one.Name] || one.Added != (one.Name == "y") {
				t.Fatalf("got %+v after %q", one, last)
			}
			last = one.Name
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	if got != len(want) {
		t.Errorf("%d customers, want %d", got, len(want))
	}
	yes, no := true, false
	for _, test := range []struct {
		q    CustomerQuery
		want int
	}{
		{CustomerQuery{Added: &yes}, 1},
		{CustomerQuery{Added: &no}, len(want) - 1},
		{CustomerQuery{Address: "10.9.7.7"}, 1},
		{CustomerQuery{Address: "10.8.7.7"}, 0},
		{CustomerQuery{Exact: "y", Plan: "slow"}, 1},
		{CustomerQuery{Exact: "y", Plan: "fast"}, 0},
		{CustomerQuery{Name: "y"}, 1},
	} {
		page, err := c.CustomerPage(test.q)
		if err != nil || len(page.Customers) != test.want {
			t.Errorf("%+v: %d customers and %v, want %d", test.q, len(page.Customers), err, test.want)
		}
	}
	if _, err := c.CustomerPage(CustomerQuery{Address: "10.0.0.300"}); err == nil {
		t.Error("no error for a wrong address")
	}
}

// TestNoTable checks the error of a policy without customers.
func TestNoTable(t *testing.T) {
	policy, err := policyfile.Source{Name: "p", Text: "classes: [{name: all}]"}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	file, err := changes.Open("")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeShaper{policy: policy}
	c := NewChanger(file, func() []Changeable { return []Changeable{s} })
	if _, err := ask(c, item(Put, "a", "plan", "slow")); !errors.Is(err, policyfile.ErrNoTable) {
		t.Errorf("got %v", err)
	}
}
