package policyfile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
)

// TestCustomerFile reads a policy with customers from a folder, and again from its label.
func TestCustomerFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "etc", "c.csv")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	source := Source{Name: "etc/p.yaml", Path: filepath.Join(dir, "etc", "p.yaml"), Text: ispPolicy}
	load := func(s Source) (*Source, int, error) {
		f, err := s.load()
		if err != nil {
			return &s, 0, err
		}
		return &s, len(f.Policy.Customers.List), nil
	}
	if _, _, err := load(source); err == nil ||
		err.Error() != `etc/p.yaml:3:19: file "c.csv": no such file or directory` {
		t.Errorf("without the file: %v", err)
	}

	const header = "customer,address,plan\n"
	comment := "#" + strings.Repeat("x", maxKeptCustomers) + "\n"
	for name, large := range map[string]string{"small": "", "large": comment} {
		text := header + "1,::1,quiet\n" + large
		write(text)
		s, n, err := load(source)
		if err != nil || n != 1 || s.Customers.Path != path || (s.Customers.Text == text) != (large == "") {
			t.Fatalf("%s: %d customers, %+v, %v", name, n, s.Customers, err)
		}
		label := s.Label()
		if size := len(label) - len(ispPolicy); size > 1000 {
			t.Errorf("%s: the label has %d bytes besides the policy", name, size)
		}
		again, err := SourceOf(label)
		if err != nil {
			t.Fatal(err)
		}
		if _, n, err := load(again); err != nil || n != 1 {
			t.Errorf("%s, from the label: %d customers, %v", name, n, err)
		}
		write(text + "2,::2,quiet\n")
		_, n, err = load(again)
		if changed := err != nil &&
			err.Error() == `etc/p.yaml:3:19: file "c.csv": the file has changed since the policy was applied: reload the policy`; changed != (large != "") ||
			!changed && n != 1 {
			t.Errorf("%s, changed: %d customers, %v", name, n, err)
		}
		if _, n, err := load(source); err != nil || n != 2 {
			t.Errorf("%s, read again: %d customers, %v", name, n, err)
		}
	}

	write(header)
	if err := os.Truncate(path, maxCustomersSize+1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := load(source); err == nil ||
		err.Error() != `etc/p.yaml:3:19: file "c.csv": larger than 256 MiB, the maximum` {
		t.Errorf("too large: %v", err)
	}
	if _, _, err := readAndHash("/dev/zero", 1<<20); err == nil ||
		err.Error() != "larger than 1 MiB, the maximum" {
		t.Errorf("endless: %v", err)
	}
	source.Text = strings.Replace(ispPolicy, "c.csv", dir, 1)
	if _, _, err := load(source); err == nil || !strings.HasSuffix(err.Error(), "is a directory") {
		t.Errorf("a folder: %v", err)
	}
	if raw, _ := json.Marshal(Source{Name: "a", Text: "b"}); strings.Contains(string(raw), "customers") {
		t.Errorf("label without customers: %s", raw)
	}
}

// TestCustomerExample reads the example of the docs.
func TestCustomerExample(t *testing.T) {
	const path = "../../../../docs/isp.yaml"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := Source{Name: "docs/isp.yaml", Path: path, Text: string(text)}
	f, err := s.load()
	if err != nil {
		t.Fatal(err)
	}
	list := f.Policy.Customers.List
	if _, ignored := f.Ignored(); len(list) != 5 || ignored != nil || list[2].Name != "Example, Inc." ||
		len(list[2].Prefixes) != 2 {
		t.Errorf("customers: %+v, ignored columns %q", list, ignored)
	}
	if got, want := f.Place(list[2].Plan, "rate"), "docs/customers.csv:5"; got != want {
		t.Errorf("the plan of the third customer is at %s, want %s", got, want)
	}
}

// TestCompileNames compares CompileNames with CompileLabel for all kinds of keys, and changes the
// file.
func TestCompileNames(t *testing.T) {
	const rest = "customers: {file: c.csv, key: KEY}\nplans:\n  a: {type: token-bucket, rate: 1mbit, burst: 9000B}\n  b: {type: token-bucket, rate: 2mbit, burst: 9000B}\n"
	for key, table := range map[string]string{
		"address":        "plan,address,customer,rate\nb,192.0.2.1 2001:db8::/32,one,\na,192.0.2.2,two,5mbit\na,,three,\n",
		"vlan":           "customer,vlan,plan,rate\none,1 2,b,\ntwo,3,a,5mbit\nthree,,a,\n",
		"[svlan, cvlan]": "customer,svlan,cvlan,plan,rate\none,1,2,b,\ntwo,1,3,a,5mbit\nthree,,,a,\n",
	} {
		dir := t.TempDir()
		path, changed := filepath.Join(dir, "c.csv"), filepath.Join(dir, "changes")
		if err := os.WriteFile(path, []byte(table+"#"+strings.Repeat("x", maxKeptCustomers)+"\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
		file, err := changes.Open(changed)
		if err != nil {
			t.Fatal(err)
		}
		change := changes.Change{
			Target: changes.Target{Kind: changes.Customer, Name: "three"}, Terms: changes.Terms{Plan: "b"},
		}
		if err := file.Add([]changes.Change{change}, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		source := Source{
			Name: "p.yaml", Path: filepath.Join(dir, "p.yaml"),
			Text: ispClasses + strings.Replace(rest, "KEY", key, 1), Changes: changed,
		}
		c, err := source.Compile()
		if err != nil {
			t.Fatal(err)
		}
		label := c.Label()
		names := func(c *Compiled, err error) (out [][2]string) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			for i, customer := range c.Plan.Customers.Source.List {
				out = append(out, [2]string{customer.Name, c.Plan.Customers.Service(uint32(i + 1)).Name})
			}
			return out
		}
		want := names(CompileLabel(label))
		if got := names(CompileNames(label)); !slices.Equal(got, want) || len(got) != 3 ||
			got[2] != [2]string{"three", "b"} {
			t.Errorf("key %s: customers and plans %q, want %q", key, got, want)
		}
		if err := os.WriteFile(path, []byte(table), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := CompileNames(label); err == nil || !strings.Contains(err.Error(), "has changed since") {
			t.Errorf("key %s, another file: %v", key, err)
		}
	}
}
