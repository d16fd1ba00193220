package live

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// TestStates checks how a list describes changes that are not as they say.
func TestStates(t *testing.T) {
	now := time.Now()
	off, on := true, false
	target := func(name string) changes.Target { return changes.Target{Kind: changes.Customer, Name: name} }
	all := Changes{Book: changes.Book{}, Interrupted: []changes.Target{target("killed"), target("reset")}}
	for _, c := range []changes.Change{
		{Target: target("ended"), Terms: changes.Terms{Off: &off}, Until: now.Add(-1)},
		{Target: target("hidden"), Terms: changes.Terms{Plan: "slow"}},
		{Target: target("hidden"), Terms: changes.Terms{Plan: "fast"}, Until: now.Add(time.Hour)},
		{Target: target("killed"), Terms: changes.Terms{Plan: "slow"}},
		{Target: target("part"), Terms: changes.Terms{Plan: "slow", Off: &off}},
		{Target: target("part"), Terms: changes.Terms{Off: &on}, Until: now.Add(time.Hour)},
		{Target: target("quota"), Terms: changes.Terms{Plan: "fast"}},
		{Target: target("quota"), Terms: changes.Terms{Plan: "slow"}, Until: now.Add(time.Hour), By: changes.ByQuota},
	} {
		all.Apply(c)
	}
	want := []string{
		"ended: " + StateEnded, "hidden: " + StateHidden, "hidden: ", "killed: " + StateInterrupted,
		"part: ", "part: ", "quota: " + StateHidden, "quota: ", "reset: " + StateInterrupted,
	}
	var got []string
	for c, state := range all.States(now) {
		got = append(got, c.Name+": "+state)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	policy := changerPolicy(t, "", "ended,10.0.0.1,slow,\nhidden,10.0.0.2,slow,\nquota,10.0.0.3,fast,\n")
	list, overQuota := all.InForce(policy, now)
	if len(list) != 4 || overQuota != 1 || list[0].Policy.Plan != "slow" || !list[0].Differs() ||
		list[1].Differs() || !list[2].Differs() {
		t.Errorf("in force: %+v, %d over quota", list, overQuota)
	}
	if n := all.Count(policy, now); n.Users != 4 || n.Quotas != 1 {
		t.Errorf("counted %+v", n)
	}
}

// TestHeard checks that an announcement explains one act in its direction.
func TestHeard(t *testing.T) {
	var h Heard
	author := changes.Author{User: "alice", With: "shaper reload"}
	if err := h.announce(announcement{Reload, kernel.Egress, author}, nil); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		act       Act
		direction dataplane.Direction
		want      string
	}{
		{Reload, kernel.Ingress, Unknown},
		{Detach, kernel.Egress, Unknown},
		{Reload, kernel.Egress, "alice with shaper reload"},
		{Reload, kernel.Egress, Unknown},
	} {
		if got := h.By(row.act, row.direction); got != row.want {
			t.Errorf("%s %v by %q, want %q", row.act, row.direction, got, row.want)
		}
	}
	if err := h.announce(announcement{"anything", kernel.Egress, author}, nil); err != nil ||
		len(h.last) != 0 {
		t.Errorf("an unknown act is kept: %v, %v", h.last, err)
	}
}

// TestLockedFile ends a change and follows a schedule while another process holds the lock of the file and
// loads a policy without them. When the lock is free, they are in force again, and kept.
func TestLockedFile(t *testing.T) {
	policy := changerPolicy(t,
		"  home: {type: token-bucket, rate: 5mbit, burst: 10kB, when: {at: \"08:00-10:00\", plan: fast}}\n",
		"a,10.0.0.1,home,\nb,10.0.0.2,slow,\n")
	s := newFakeShaper(policy)
	c := newTestChanger(t, s)
	day := time.Now().AddDate(0, 0, 2).UTC().Truncate(24 * time.Hour)
	change := changes.Change{
		Target: changes.Target{Kind: changes.Customer, Name: "b"}, Terms: changes.Terms{Plan: "fast"},
		Until: day.Add(8 * time.Hour),
	}
	if err := c.Set([]changes.Change{change}); err != nil {
		t.Fatal(err)
	}
	advance(t, c, day.Add(7*time.Hour))
	before := map[string]string{"a": "home", "b": "fast"}
	wantPlans(t, "at 7:00", s, before)
	lock, err := changes.Lock(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	eight := day.Add(8 * time.Hour)
	advance(t, c, eight) // no error: a reload has the lock for a moment
	after := map[string]string{"a": "fast", "b": "slow"}
	wantPlans(t, "at 8:00, locked", s, after)
	if err := c.Advance(eight.Add(lockTime)); err == nil {
		t.Error("that the lock is held for long is no problem")
	}
	// as the other process amended its policy before 8:00
	s.plans = map[string]string{"a": "home", "b": "fast"}
	lock.Close()
	advance(t, c, eight.Add(2*lockTime))
	wantPlans(t, "at 8:00, after the lock", s, after)
	if book, interrupted, err := changes.Read(c.Path); err != nil || len(book)+len(interrupted) != 0 {
		t.Errorf("the file has %v, interrupted %v, %v", book, interrupted, err)
	}

	// The same without any file.
	c.Path = filepath.Join(c.Path, "gone")
	change.Until = day.Add(20 * time.Hour)
	if err := c.setUnlocked([]changes.Change{change}, changes.ErrLocked); err == nil ||
		s.plans["b"] != "fast" {
		t.Errorf("got %v, plans %v", err, s.plans)
	}
	if err := c.Advance(day.Add(20 * time.Hour)); err == nil || s.plans["b"] != "slow" {
		t.Errorf("got %v, plans %v: want the end in force, and a problem", err, s.plans)
	}
}
