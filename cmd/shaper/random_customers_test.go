package main

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/oracle"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestRandomCustomersModel checks that the model accepts the random policies with customers, and
// that their packets have all kinds of outcomes before many policies were tried.
func TestRandomCustomersModel(t *testing.T) {
	t.Parallel()
	r := seededRand(t)
	missing := map[string]int{"customer": 5000, "stranger": 500, "key": 200, "unclassified": 500}
	for _, reason := range []string{
		"rfc2697-green", "rfc2697-yellow", "rfc2697-red", "rfc2698-green", "rfc2698-yellow", "rfc2698-red", "rfc2698-pre-red",
		"rfc4115-green", "rfc4115-yellow", "rfc4115-red", "token-bucket-green", "token-bucket-red", "gcra-green", "gcra-red",
		"fixed-window-green", "fixed-window-red", "sliding-counter-green", "sliding-counter-red",
		"no-meter queue", "no-meter ecn+queue", "no-meter mark+queue", "no-meter drop", "queue-full drop", "codel drop",
	} {
		missing[reason] = 1
	}
	seen := func(what string) {
		if missing[what]--; missing[what] <= 0 {
			delete(missing, what)
		}
	}
	for n := 0; n < 3000 && len(missing) > 0; n++ {
		policy, path := randomCustomers(t, r, "wan", "lan", "ap")
		rows, err := oracle.Site{
			Dir: filepath.Dir(path), Ingress: r.IntN(4) == 0,
		}.Decide([]byte(policy), customerCapture(t, r))
		if err != nil {
			t.Fatalf("%v in\n%s", err, policy)
		}
		for _, row := range rows {
			class, action, reason, key := row[3], row[6], row[10], row[11]
			switch {
			case strings.HasPrefix(class, "c"):
				seen("customer")
				seen(reason)
				seen(reason + " " + action)
			case class == "-":
				seen("unclassified")
			case key != "":
				seen("key")
			default:
				seen("stranger")
			}
		}
	}
	if len(missing) > 0 {
		t.Errorf("too few packets: %v", missing)
	}
}

// TestRandomCustomers is TestRandomPolicies with customers.
func TestRandomCustomers(t *testing.T) {
	t.Parallel()
	r, all := seededRand(t), testCaptures(t)
	rows := 0
	for range *randomPolicyCount {
		policy, path := randomCustomers(t, r, "wan", "lan", "ap")
		capture := customerCapture(t, r)
		direction := []dataplane.Direction{dataplane.Egress, dataplane.Ingress}[r.IntN(2)]
		outputAgainstModel(t, policy, path, capture, direction)
		for _, capture := range []string{capture, all[r.IntN(len(all))], all[r.IntN(len(all))]} {
			rows += againstModel(t, policy, path, capture, direction)
			if t.Failed() {
				table, err := os.ReadFile(filepath.Join(filepath.Dir(path), "customers.csv"))
				t.Fatalf("%s\n%s%v", policy, table, err)
			}
		}
	}
	if rows < 60**randomPolicyCount {
		t.Errorf("only %d rows were compared", rows)
	}
	t.Logf("%d rows were compared", rows)
}

// TestRandomCustomersByBoth compares the eBPF program with the pipeline in Go.
func TestRandomCustomersByBoth(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seededRand(t)
	rows := 0
	for range *randomPolicyCount / 4 {
		policy, path := randomCustomers(t, r)
		policy = strings.Replace(policy, "customers.csv", filepath.Join(filepath.Dir(path), "customers.csv"),
			1)
		rows += sameByBoth(t, policy, customerCapture(t, r))
		if t.Failed() {
			t.Fatal(policy)
		}
	}
	if rows < 8**randomPolicyCount {
		t.Errorf("only %d rows were compared", rows)
	}
}

// randomCustomers writes a policy with customers and its CSV file into a directory, and returns
// its text and path. Names of classes with customers begin with c. Without links, the policy has
// only what the eBPF program supports of queues and meters.
func randomCustomers(t *testing.T, r *rand.Rand, links ...string) (policy, path string) {
	t.Helper()
	var b strings.Builder
	queues, meter := randomParts(r, &b, links)

	packets, kernel := r.IntN(4) == 0, links == nil
	plans := make([]randomPlan, 1+r.IntN(8))
	b.WriteString("plans:\n")
	for i := range plans {
		plans[i] = newRandomPlan(r, packets, queues, kernel)
		fmt.Fprintf(&b, "  plan%d: {%s}\n", i, plans[i].text)
	}
	key := pickWord(r, "", "address", "[address]", "src", "[src]", "dst", "vlan", "[vlan]", "[svlan, cvlan]")
	nested := r.IntN(2) == 0 && !strings.Contains(key, "vlan")
	b.WriteString("customers:\n  file: customers.csv\n")
	if key != "" {
		fmt.Fprintf(&b, "  key: %s\n", key)
	}
	if nested {
		b.WriteString("  nested: true\n")
	}
	form := newRandomForm(r, strings.Trim(key, "[]"), packets, len(plans))
	b.WriteString(form.text(r))

	b.WriteString("classes:\n")
	some := r.IntN(4) // this class takes packets of customers
	for i := range max(some+1, 2+r.IntN(4)) {
		customers := i == some || r.IntN(2) == 0
		fmt.Fprintf(&b, "  - name: %s%d\n", map[bool]string{true: "c", false: "s"}[customers], i)
		if i != some && r.IntN(3) > 0 {
			fmt.Fprintf(&b, "    match: {%s}\n", randomMatch(r))
		}
		randomStage(r, &b, meter, customers, packets)
		for _, color := range []string{"green", "yellow", "red"} {
			if r.IntN(2) == 0 {
				fmt.Fprintf(&b, "    %s: %s\n", color, randomAction(r, queues, kernel))
			}
		}
	}
	randomRest(r, &b)

	dir := t.TempDir()
	path = filepath.Join(dir, "policy.yaml")
	for name, text := range map[string]string{
		"policy.yaml": b.String(), "customers.csv": randomTable(r, form, nested, plans),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return b.String(), path
}

// randomStage writes the meter of a class and its chain.
func randomStage(r *rand.Rand, b *strings.Builder, meter func() string, customers, packets bool) {
	options := randomColor(r)
	then := pickWord(r, "", fmt.Sprintf("m%d", r.IntN(3)))
	switch {
	case !customers && r.IntN(3) == 0:
		return
	case !customers:
		fmt.Fprintf(b, "    meter: {%s%s}\n", meter(), options)
	default:
		b.WriteString("    per: customer\n")
		if packets {
			options += ", count: packets"
		}
		if then != "" && r.IntN(2) == 0 {
			options += ", then: " + then
			then = ""
		}
		if options == "" && r.IntN(2) == 0 {
			b.WriteString("    meter: plan\n")
		} else {
			fmt.Fprintf(b, "    meter: {type: plan%s}\n", options)
		}
	}
	if then != "" {
		fmt.Fprintf(b, "    then: %s\n", then)
	}
}

// randomTable returns a CSV file of customers with any of the supported spellings.
func randomTable(r *rand.Rand, form *randomForm, nested bool, plans []randomPlan) string {
	lists := map[string]func(columns int) []string{}
	switch form.key {
	case "vlan":
		lists["vlan"] = vlanLists(r)
	case "svlan, cvlan":
		pairs := r.Perm(len(tagIDs) * len(tagIDs))
		number := -1
		lists["svlan"] = func(int) []string {
			number++
			return []string{fmt.Sprint(tagIDs[pairs[number]/len(tagIDs)])}
		}
		lists["cvlan"] = func(int) []string { return []string{fmt.Sprint(tagIDs[pairs[number]%len(tagIDs)])} }
	default:
		lists["address"] = addressLists(r, nested)
	}
	columns := form.columns()
	r.Shuffle(len(columns), func(i, j int) { columns[i], columns[j] = columns[j], columns[i] })
	w := tableWriter{r: r, separator: pickWord(r, ",", ",", ";", "\t"), end: pickWord(r, "\n", "\n", "\r\n")}
	w.WriteString(pickWord(r, "", "", "\ufeff"))
	w.skipped()
	header := slices.Clone(columns)
	for i := range header {
		header[i] = pickWord(r, header[i], header[i], strings.ToUpper(header[i]))
	}
	w.line(header)
	for i := range []int{1, 5, 12, 30}[r.IntN(4)] {
		number := r.IntN(len(plans))
		cells := map[string]string{} // by column
		set := func(content string, values ...string) {
			for i, name := range form.names[content] {
				cells[name] = values[i]
			}
		}
		set("customer", fmt.Sprintf(pickWord(r, "%d", "%04d", "k-%d", "Müller, %d", "\"%d\"", "%d; x"), i))
		set("plan", fmt.Sprintf("plan%d", number))
		if form.plan >= 0 && (form.names["plan"] == nil || r.IntN(3) == 0) {
			number = form.plan
			set("plan", "")
		}
		for _, name := range form.ignored {
			cells[name] = pickWord(r, "", "x", "a, b", "1mbit")
		}
		for _, name := range []string{"address", "vlan", "svlan", "cvlan"} {
			if f := lists[name]; f != nil {
				set(name, f(len(form.names[name]))...)
			}
		}
		own := plans[number].own
		for _, name := range sortedKeys(own) {
			if r.IntN(4) == 0 {
				set(name, form.rate(r, own[name]()))
			}
		}
		var line []string
		for _, name := range columns {
			line = append(line, cells[name])
		}
		w.skipped()
		w.line(line)
	}
	return w.String()
}

// tableWriter writes a CSV file.
type tableWriter struct {
	strings.Builder
	r              *rand.Rand
	separator, end string
}

// skipped writes lines that a reader skips.
func (w *tableWriter) skipped() {
	for w.r.IntN(4) == 0 {
		w.WriteString(pickWord(w.r, "", "  ", "# a, \"b;\tc", "#") + w.end)
	}
}

func (w *tableWriter) line(cells []string) {
	for i, cell := range cells {
		if i > 0 {
			w.WriteString(w.separator)
		}
		switch {
		case strings.ContainsAny(cell, ",;\t\n\"#") || w.r.IntN(9) == 0:
			fmt.Fprintf(w, "\"%s\"", strings.ReplaceAll(cell, "\"", "\"\""))
		case w.r.IntN(9) == 0:
			fmt.Fprintf(w, " %s  ", cell)
		default:
			w.WriteString(cell)
		}
	}
	w.WriteString(w.end)
}

// Addresses and IDs of tags that occur in captures.
var (
	insideAddrs = []string{
		"192.0.2.0", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.11", "192.0.2.12", "192.0.2.15", "198.51.100.20",
		"203.0.113.1", "203.0.113.50", "203.0.113.51", "203.0.113.52", "203.0.113.53", "203.0.113.56",
		"2001:db8::1", "2001:db8:1::a", "2001:db8:1::c", "2001:db8:1::e", "2001:db8:2::20",
	}
	tagIDs = []int{0, 7, 10, 20, 30, 100}
)

// vlanLists returns a function for the VLAN IDs of the next customer in some columns, none of which another
// one has.
func vlanLists(r *rand.Rand) func(columns int) []string {
	ids := []string{"1", "3", "12", "13", "300", "301", "4094", "4095"}
	for _, id := range tagIDs {
		ids = append(ids, fmt.Sprint(id))
	}
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return func(columns int) []string {
		n := min(r.IntN(4), len(ids))
		list := ids[:n]
		ids = ids[n:]
		return divided(r, list, columns, " ", ",", "; ")
	}
}

// customerCapture is randomCapture with IPv4, IPv6 and ARP, VLAN tags, and packets between all of
// insideAddrs.
func customerCapture(t *testing.T, r *rand.Rand) string {
	t.Helper()
	order := binary.BigEndian
	return burstCapture(t, r, func(size int) (frame []byte, wire int) {
		frame = make([]byte, 12)
		for range []int{0, 0, 1, 2, 2, 3}[r.IntN(6)] {
			frame = order.AppendUint16(frame, []uint16{0x8100, 0x88a8, 0x9100}[r.IntN(3)])
			frame = order.AppendUint16(frame, uint16(r.IntN(8)<<13|tagIDs[r.IntN(len(tagIDs))]))
		}
		if r.IntN(20) == 0 {
			frame = append(frame, 8, 6)
			return append(frame, make([]byte, 28)...), len(frame) + size
		}
		src := netip.MustParseAddr(insideAddrs[r.IntN(len(insideAddrs))])
		dst := src
		for dst == src || dst.Is4() != src.Is4() {
			dst = netip.MustParseAddr(insideAddrs[r.IntN(len(insideAddrs))])
		}
		class := []byte{0, 10, 12, 14, 46}[r.IntN(5)]<<2 | byte(r.IntN(4))
		proto := []byte{1, 6, 17}[r.IntN(3)]
		if src.Is4() {
			frame = append(frame, 8, 0, 0x45, class)
			frame = order.AppendUint16(frame, uint16(size))
			frame = append(frame, 0, 0, 0, 0, 64, proto, 0, 0)
		} else {
			size = max(size, 48)
			frame = append(frame, 0x86, 0xdd, 0x60|class>>4, class<<4, 0, 0)
			frame = order.AppendUint16(frame, uint16(size-40))
			frame = append(frame, proto, 64)
		}
		frame = append(append(frame, src.AsSlice()...), dst.AsSlice()...)
		ip := 20
		if src.Is6() {
			ip = 40
		}
		wire = len(frame) - ip + size
		frame = order.AppendUint16(frame, uint16(r.IntN(3)))
		return append(frame, 0, 53, 0, 0, 0, 0), wire
	})
}

// sortedKeys returns the keys of a map in a fixed order, so that a seed gives the same values.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// join writes the entries of a YAML mapping.
func join(values map[string]string) string {
	var parts []string
	for _, key := range sortedKeys(values) {
		parts = append(parts, key+": "+values[key])
	}
	return strings.Join(parts, ", ")
}
