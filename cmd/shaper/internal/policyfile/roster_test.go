package policyfile

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// rosterPolicy compiles a policy with a file of customers. more is added to customers:.
func rosterPolicy(t *testing.T, more, rows string) *Compiled {
	t.Helper()
	dir := t.TempDir()
	text := `
customers: {file: c.csv` + more + `}
plans:
  gold: {type: trtcm, cir: 10mbit, cbs: 10kB, pir: 20mbit, pbs: 20kB}
  basic: {type: token-bucket, rate: 2mbit, burst: 4kB, quota: {limit: 1GB, every: month, then: slow}}
  slow: {type: token-bucket, rate: 100kbit, burst: 2kB}
classes:
  - {name: all, per: customer, meter: plan, red: drop}
`
	if err := os.WriteFile(filepath.Join(dir, "c.csv"), []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Source{Name: "p.yaml", Path: filepath.Join(dir, "p.yaml"), Text: text}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func record(name string, cells ...string) *customers.Record {
	r := &customers.Record{Name: name, Cells: map[string]string{}}
	for i := 0; i < len(cells); i += 2 {
		r.Cells[cells[i]] = cells[i+1]
	}
	return r
}

const rosterRows = "customer,address,plan,rate,quota\n" +
	"ann,192.0.2.1,gold,,\nbob,192.0.2.2 2001:db8::/64,basic,3mbit,2GB\ncem,192.0.2.3,basic,,\n"

// TestRosterChange makes changes of one customer, and compares the policy with one whose file has them.
func TestRosterChange(t *testing.T) {
	for _, test := range []struct {
		name string
		list []*customers.Record
		rows string // of the file with the same customers
	}{
		{
			"added",
			[]*customers.Record{record("dan", "address", "192.0.2.9", "plan", "gold")},
			rosterRows + "dan,192.0.2.9,gold,,\n",
		},
		{
			"own rate",
			[]*customers.Record{record("dan", "address", "192.0.2.9", "plan", "basic", "rate", "7mbit")},
			rosterRows + "dan,192.0.2.9,basic,7mbit,\n",
		},
		{
			"quota",
			[]*customers.Record{record("dan", "plan", "basic", "quota", "5GB")},
			rosterRows + "dan,,basic,,5GB\n",
		},
		{
			"replaced",
			[]*customers.Record{record("bob", "address", "192.0.2.7", "plan", "slow")},
			"customer,address,plan,rate,quota\nann,192.0.2.1,gold,,\nbob,192.0.2.7,slow,,\ncem,192.0.2.3,basic,,\n",
		},
		{
			"removed",
			[]*customers.Record{{Name: "ann", Removed: true}},
			"customer,address,plan,rate,quota\nbob,192.0.2.2 2001:db8::/64,basic,3mbit,2GB\ncem,192.0.2.3,basic,,\n",
		},
		{"addresses exchanged", []*customers.Record{
			record("ann", "address", "192.0.2.3", "plan", "gold"),
			record("cem", "address", "192.0.2.1", "plan", "basic"),
		}, "customer,address,plan,rate,quota\nann,192.0.2.3,gold,,\n" +
			"bob,192.0.2.2 2001:db8::/64,basic,3mbit,2GB\ncem,192.0.2.1,basic,,\n"},
		{
			"range",
			[]*customers.Record{record("dan", "address", "192.0.2.8-11", "plan", "gold")},
			rosterRows + "dan,192.0.2.8/30,gold,,\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := rosterPolicy(t, "", test.rows)
			c := rosterPolicy(t, "", rosterRows)
			if _, _, err := c.Roster().Change(test.list); err != nil {
				t.Fatal(err)
			}
			sameCustomers(t, c.Current(), want)
			book := customers.Book{}
			for _, r := range test.list {
				book.Apply(r)
			}
			loaded, stale := rosterPolicy(t, "", rosterRows).WithCustomers(book)
			if len(stale) > 0 {
				t.Errorf("stale: %v", stale)
			}
			sameCustomers(t, loaded, want)
			for _, r := range test.list { // the roster of a loaded policy continues
				_, _, err := loaded.Roster().Change([]*customers.Record{{Name: r.Name, Reset: true}})
				if err != nil && !strings.Contains(err.Error(), "belongs to") {
					t.Fatal(err)
				}
			}
		})
	}
}

// sameCustomers compares the customers of two policies, by name.
func sameCustomers(t *testing.T, got, want *Compiled) {
	t.Helper()
	describe := func(c *Compiled) map[string]string {
		out := map[string]string{}
		plan := c.Plan.Customers
		for i, from := range plan.Source.List {
			var keys []string
			for _, p := range from.Prefixes {
				keys = append(keys, p.String())
				if c.Roster().Of(p) != from.Name {
					t.Errorf("%v belongs to %q, not to %q", p, c.Roster().Of(p), from.Name)
				}
			}
			quota, own := c.OwnQuota(from.Name)
			service := plan.Service(uint32(i + 1))
			cells, _ := c.Roster().Definition(from.Name)
			out[from.Name] = fmt.Sprintf("%v %s %+v %v %v %v %v", keys, service.Name, service.Source.Params, quota, own,
				c.loader.rows.ownParameters(service.Source), cells)
			if plan.Number(from.Name) != uint32(i+1) {
				t.Errorf("customer %q has number %d, want %d", from.Name, plan.Number(from.Name), i+1)
			}
		}
		return out
	}
	if a, b := describe(got), describe(want); !reflect.DeepEqual(a, b) {
		t.Errorf("got  %q\nwant %q", a, b)
	}
}

// TestRosterRefused checks the errors of records, and that nothing changes with one of them in a list.
func TestRosterRefused(t *testing.T) {
	for _, test := range []struct {
		record *customers.Record
		want   string
	}{
		{record("x", "plan", "none"), `customer "x": no plan named "none"`},
		{record("x", "address", "192.0.2.1", "plan", "gold"), `192.0.2.1 belongs to customer "ann"`},
		{record("x", "address", "192.0.2.0/24", "plan", "gold"), "contains a prefix of customer"},
		{record("x", "address", "2001:db8::7", "plan", "gold"), `lies inside a prefix of customer "bob"`},
		{record("x", "address", "192.0.2.300", "plan", "gold"), "192.0.2.300"},
		{record("x", "plan", "basic", "rate", "50M"), "rate"},
		{record("x", "plan", "gold", "rate", "5mbit"), "rate"},
		{record("x", "plan", "gold", "color", "red"), `unknown parameter "color"`},
		{record("x", "plan", "gold", "quota", "1GB"), `plan "gold" has no quota`},
		{record("x\x00y", "plan", "gold"), "unprintable"},
		{record("x\n", "plan", "gold"), "blank"},
		{record(strings.Repeat("x", 65), "plan", "gold"), "the maximum is 64"},
		{record("x", "plan", "basic", "down", "1mbit"), "go together"},
		{record("x", "plan", "gold", "vlan", "7"), `unknown parameter "vlan"`},
		{record("# x", "plan", "gold"), ""}, // no comment of a file
		{record(`"a", b`, "plan", "gold"), ""},
	} {
		c := rosterPolicy(t, "", rosterRows)
		first := record("new", "address", "192.0.2.77", "plan", "gold")
		_, _, err := c.Roster().Change([]*customers.Record{first, test.record})
		if test.want == "" {
			if _, known := c.Roster().Definition(test.record.Name); err != nil || !known {
				t.Errorf("%+v: got %v, known %v", test.record, err, known)
			}
			continue
		}
		var of *CustomerError
		if !errors.As(err, &of) || of.Name != test.record.Name || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v, want %q", test.record, err, test.want)
		}
		sameCustomers(t, c.Current(), rosterPolicy(t, "", rosterRows))
	}
}

// TestRosterNestedRanges checks that nested ranges are refused, also those in a list of their own, because
// they could overlap in part. The policy is compared with one whose file has the other records.
func TestRosterNestedRanges(t *testing.T) {
	const nested = ", nested: true"
	at := func(name, address string) *customers.Record { return record(name, "address", address, "plan", "gold") }
	for _, list := range [][]*customers.Record{
		{at("x", "198.51.100.1-3")},
		{at("x", "198.51.100.0-2"), at("y", "198.51.100.1-3")},
		{at("x", "192.0.2.99 2001:db8:7::1-2001:db8:7::ffff")},
	} {
		c := rosterPolicy(t, nested, rosterRows)
		_, _, err := c.Roster().Change(list)
		if err == nil || !strings.Contains(err.Error(), "is not one prefix: with nested: true give its addresses as prefixes") {
			t.Errorf("%v: got %v", list[0].Cells, err)
		}
		sameCustomers(t, c.Current(), rosterPolicy(t, nested, rosterRows))
	}
	for _, address := range []string{"198.51.100.2-3", "192.0.2.0/24", "2001:db8::7-7"} {
		c := rosterPolicy(t, nested, rosterRows)
		if _, _, err := c.Roster().Change([]*customers.Record{at("x", address)}); err != nil {
			t.Errorf("%s: %v", address, err)
		}
		sameCustomers(t, c.Current(), rosterPolicy(t, nested, rosterRows+"x,"+address+",gold,,\n"))
	}
	c := rosterPolicy(t, "", rosterRows)
	if _, _, err := c.Roster().Change([]*customers.Record{at("x", "198.51.100.1-3")}); err != nil {
		t.Error(err)
	}
	sameCustomers(t, c.Current(), rosterPolicy(t, "", rosterRows+"x,198.51.100.1-3,gold,,\n"))
}

// TestRosterUndo makes random lists of changes, undoes half of them, and compares with a model.
func TestRosterUndo(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c := rosterPolicy(t, "", rosterRows)
	book, done, failed := customers.Book{}, 0, 0
	for range 500 {
		var list []*customers.Record
		next := maps.Clone(book)
		for _, n := range r.Perm(8)[:1+r.IntN(3)] {
			name := []string{"ann", "bob", "cem", "d", "e", "f", "g", "h"}[n]
			address, plan := fmt.Sprintf("192.0.2.%d", r.IntN(12)), []string{"gold", "basic"}[r.IntN(2)]
			one := record(name, "address", address, "plan", plan)
			if one.Cells["plan"] == "basic" && r.IntN(2) == 0 {
				one.Cells["rate"] = fmt.Sprint(1+r.IntN(3), "mbit")
			}
			switch r.IntN(4) {
			case 0:
				one = &customers.Record{Name: name, Removed: true}
			case 1:
				one = &customers.Record{Name: name, Reset: true}
			}
			one.Since = time.Unix(int64(done), 0)
			list = append(list, one)
			next.Apply(one)
		}
		_, undo, err := c.Roster().Change(list)
		switch {
		case err != nil:
			failed++
		case r.IntN(2) == 0:
			undo()
		default:
			done++
			book = next
		}
		if r.IntN(10) == 0 {
			want, stale := rosterPolicy(t, "", rosterRows).WithCustomers(book)
			if len(stale) > 0 {
				t.Fatalf("stale: %v", stale)
			}
			sameCustomers(t, c.Current(), want)
			users := 0
			for _, p := range c.roster.plans {
				users += p.users
			}
			if users != len(c.roster.named) {
				t.Fatalf("%d users of own plans, want %d", users, len(c.roster.named))
			}
		}
	}
	if done < 50 || failed < 50 {
		t.Errorf("%d lists were made, %d refused", done, failed)
	}
}

// TestCustomersOnTop loads policies whose file conflicts with the book.
func TestCustomersOnTop(t *testing.T) {
	book := customers.Book{}
	book.Apply(record("dan", "address", "192.0.2.2", "plan", "gold"))
	book.Apply(record("ann", "address", "192.0.2.8", "plan", "gold"))
	book.Apply(&customers.Record{Name: "cem", Removed: true})
	book.Apply(record("old", "address", "192.0.2.9", "plan", "no more"))
	c, stale := rosterPolicy(t, "", rosterRows).WithCustomers(book)
	var texts []string
	for _, err := range stale {
		texts = append(texts, err.Error())
	}
	want := []string{
		`customer "bob": its addresses that customer "dan" has, which was added while the shaper ran, are left out`,
		`customer "old": no plan named "no more"`,
	}
	slices.Sort(texts)
	for i := range want {
		if len(texts) != len(want) || !strings.HasPrefix(texts[i], want[i]) {
			t.Fatalf("got %q, want %q", texts, want)
		}
	}
	for address, owner := range map[string]string{
		"192.0.2.2": "dan", "2001:db8::1": "bob", "192.0.2.8": "ann", "192.0.2.1": "", "192.0.2.3": "",
	} {
		a := netip.MustParseAddr(address)
		if got := c.Roster().Of(netip.PrefixFrom(a, a.BitLen())); got != owner {
			t.Errorf("%s belongs to %q, want %q", address, got, owner)
		}
	}
	names := c.Roster().Select(9, func(string, string) bool { return true })
	if !slices.Equal(names, []string{"ann", "bob", "dan"}) {
		t.Errorf("customers %q", names)
	}
}

// TestRosterServices checks that a change by shaper set applies to a customer that comes later.
func TestRosterServices(t *testing.T) {
	c := rosterPolicy(t, "", rosterRows)
	book := changes.Book{}
	book.Apply(changes.Change{
		Target: changes.Target{Kind: changes.Customer, Name: "dan"}, Terms: changes.Terms{Plan: "slow"},
	})
	edits, _, err := c.Roster().Change([]*customers.Record{
		record("dan", "address", "192.0.2.9", "plan", "gold"), record("eve", "address", "192.0.2.10", "plan", "gold"),
	})
	if err != nil {
		t.Fatal(err)
	}
	list := c.Roster().Services(edits, dataplane.Egress, book, time.Now())
	if list[0].Plan.Name != "slow" || list[1].Plan.Name != "gold" {
		t.Errorf("plans %q and %q", list[0].Plan.Name, list[1].Plan.Name)
	}
}

// TestRosterKeys checks that the definition of a customer has its keys as in the file, by each kind of key.
func TestRosterKeys(t *testing.T) {
	for key, row := range map[string][2]string{
		"vlan": {"vlan", "7 9"}, "[svlan, cvlan]": {"svlan,cvlan", "7,9"}, "mark": {"mark", "23"},
		"mac": {"mac", "02:00:00:00:00:07"}, "[vlan, mac]": {"vlan,mac", "7,02:00:00:00:00:07"},
		"cgroup": {"cgroup", "/system.slice/ssh.service"},
	} {
		empty := strings.Repeat(",", strings.Count(row[0], ","))
		c := rosterPolicy(t, ", key: "+key, fmt.Sprintf("customer,%s,plan\nfirst,%s,gold\nann,%s,gold\n", row[0], empty,
			row[1]))
		cells, ok := c.Roster().Definition("ann")
		want := map[string]string{"plan": "gold"}
		values := strings.Split(row[1], ",")
		for i, name := range strings.Split(row[0], ",") {
			want[name] = values[i]
		}
		if !ok || !maps.Equal(cells, want) {
			t.Errorf("key %s: got %v, want %v", key, cells, want)
		}
		added := record("new", "plan", "gold")
		for name, cell := range want {
			added.Cells[name] = strings.NewReplacer("7", "8", "9", "10", "23", "24").Replace(cell)
		}
		_, _, err := c.Roster().Change([]*customers.Record{added})
		if key == "cgroup" {
			if !errors.Is(err, ErrCgroups) {
				t.Errorf("key %s: got %v", key, err)
			}
			continue
		}
		if cells, ok = c.Roster().Definition("new"); err != nil || !ok || !maps.Equal(cells, added.Cells) {
			t.Errorf("key %s: got %v, %v, want %v", key, cells, err, added.Cells)
		}
	}
}
