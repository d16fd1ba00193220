package stats

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// sent returns a view as another process gets it.
func sent(t *testing.T, v View) View {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out View
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestViewSent checks that another process prints the same of a shaper, whatever its counters and its state
// are.
func TestViewSent(t *testing.T) {
	t.Parallel()
	s := newSource()
	for _, about := range []kernel.About{
		{Pacer: kernel.HTB, MQ: true, Fair: kernel.FairByBoth, Dry: true, Pinned: true, Process: 7, GSOLimit: 9000},
		{Pacer: kernel.HTB, GSOLimit: 9000, AskedGSO: 9000, Until: time.Now().Add(time.Hour)},
		{Pacer: kernel.FQ},
		{Peer: "eth1"},
	} {
		about.Interface, about.Index, about.Direction, about.Outline = "eth0", 3, kernel.Ingress, s.Outline
		about.Since, about.Loaded = time.Now(), time.Now()
		about.Place.Hook, about.Place.Mode, about.Place.Index = "xdp", "generic", 4
		now := s.Sample
		if about.Peer != "" {
			about.Place.Hook = live.ByTap
		} else {
			now.Keys = nil
		}
		before := live.Sample{
			Reading: kernel.Reading{
				At: now.At / 2, Stats: make([]dataplane.ClassStats, len(now.Stats)),
				Queues: make([]dataplane.QueueState, len(now.Queues)),
			},
			Tokens: now.Tokens, Keys: now.Keys,
		}
		sh := &lossyShaper{lost: tap.Lost{Memory: dataplane.Count{Packets: 5}}}
		sh.about = about
		view := ViewOf(sh, lookAtChanges, &Samples{before, now})
		print := func(v View) string {
			var out bytes.Buffer
			PrintStats(say.NewPrinter(&out), []View{v}, 0, false)
			return out.String()
		}
		all := view
		all.About = about
		want, got := print(all), print(sent(t, view))
		if want != got || !strings.Contains(want, "eth0 ingress") {
			t.Errorf("%+v: another process prints\n%s\nwant\n%s", about, got, want)
		}
		if got := sent(t, view); !reflect.DeepEqual(got.Samples, view.Samples) || got.Lost != view.Lost {
			t.Errorf("another process gets %+v, %+v, want %+v, %+v", got.Samples, got.Lost, view.Samples, view.Lost)
		}
	}
}

// TestViewChanges checks that changes are printed by another process as by this one.
func TestViewChanges(t *testing.T) {
	t.Parallel()
	for i, f := range []live.InForce{
		{Change: changes.Change{
			Target: changes.Target{Kind: changes.Customer, Name: "a b"}, Until: time.Now().Add(time.Hour),
			Terms:  changes.Terms{Plan: "p", Parameters: map[string]string{"rate": "5mbit"}, Off: new(true)},
			Author: changes.Author{User: "u", With: "the API"}, Since: time.Now(),
		}, Policy: changes.Terms{Plan: "q"}, State: live.StateEnded},
		{Change: changes.Change{
			Target: changes.Target{Kind: changes.Link, Name: "l"},
			Terms:  changes.Terms{Parameters: map[string]string{"rate": "5mbit"}},
		}, Policy: changes.Terms{Parameters: map[string]string{"rate": "7mbit"}}},
		{Change: changes.Change{Target: changes.Target{Kind: changes.Queue, Name: "q"}, Reset: true}},
		{Change: changes.Change{
			Target: changes.Target{Kind: changes.Customer, Name: "c"}, By: changes.ByQuota,
			Terms: changes.Terms{Plan: "slow"},
		}},
	} {
		v := View{Status: Status{changesJSON: changesJSON{Changes: nil}}}
		v.Status.Changes = append(v.Status.Changes, InForceJSON(&f))
		v = sent(t, v)
		if got := inForceOf(&v.Status.Changes[0]).Words(); got != f.Words() {
			t.Errorf("%d: got %q, want %q", i, got, f.Words())
		}
	}
}
