package livetest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLiveCustomersRollback changes a large file of customers under a policy with --confirm. The
// rollback restores the previous plans, although their file is gone.
func TestLiveCustomersRollback(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	dir := t.TempDir()
	policy, file := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "customers.csv")
	rewriteFile(t, policy, `classes:
  - {name: customers, per: customer, meter: plan}
customers: {file: customers.csv}
plans:
  home: {type: token-bucket, rate: 1mbit, burst: 20kB}
  business: {type: token-bucket, rate: 2mbit, burst: 20kB}
`)
	write := func(plan string) {
		var b strings.Builder
		b.WriteString("customer,address,plan\n")
		for i := range 5000 { // more than a label keeps
			fmt.Fprintf(&b, "%d,10.77.%d.%d,%s\n", i, i>>8, i&255, plan)
		}
		rewriteFile(t, file, b.String())
	}
	planOf17 := func() string {
		t.Helper()
		stdout, _ := p.wantExit(0, "stats", "v0", "--customers", "--top", "0", "--json")
		var out struct {
			Customers []struct{ Name, Plan string }
		}
		if err := json.Unmarshal([]byte(stdout), &out); err != nil {
			t.Fatal(err)
		}
		for _, c := range out.Customers {
			if c.Name == "17" {
				return c.Plan
			}
		}
		t.Fatalf("no customer 17 among %d", len(out.Customers))
		return ""
	}
	write("home")
	r := p.runShaper("--policy", policy)
	write("business")
	if plan := planOf17(); plan != "home" {
		t.Errorf("plan %s before the reload, want home", plan)
	}
	if _, stderr := p.wantExit(1, "reload", "v0", "--confirm",
		"1s"); !strings.Contains(stderr, "rolled back") {
		t.Errorf("stderr %q: want a rollback", stderr)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if plan := planOf17(); plan != "home" {
		t.Errorf("plan %s after the rollback, want home", plan)
	}
	write("business")
	p.wantExit(0, "reload", "v0")
	if plan := planOf17(); plan != "business" {
		t.Errorf("plan %s after the next reload, want business", plan)
	}
	r.stopBySIGTERM()
	p.wantNothingLeft()
}
