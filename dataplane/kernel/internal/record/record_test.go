package record

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// jsonLayout describes a type and its fields as JSON encodes them.
func jsonLayout(t reflect.Type, seen map[reflect.Type]bool) string {
	switch {
	case seen[t] || t == reflect.TypeFor[time.Time]():
		return t.String()
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice:
		return "[]" + jsonLayout(t.Elem(), seen)
	case t.Kind() == reflect.Array:
		return fmt.Sprintf("[%d]%s", t.Len(), jsonLayout(t.Elem(), seen))
	case t.Kind() != reflect.Struct:
		return t.Kind().String()
	}
	seen[t] = true
	var out strings.Builder
	for f := range t.Fields() {
		if f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		fmt.Fprintf(&out, "%s %s;", f.Name, jsonLayout(f.Type, seen))
	}
	return "{" + out.String() + "}"
}

// TestRecordVersion checks that a change of the records' layout comes with another version: a
// binary of the old version would read missing fields as zeros. The map of readings beside a record
// holds dataplane.ClassStats as memory, without names or a version of its own: a binary of the old
// version would compute rates from the wrong counters.
func TestRecordVersion(t *testing.T) {
	const version = 13
	for _, part := range []struct {
		layout reflect.Type
		want   string
	}{
		{reflect.TypeFor[About](), "358dac1a9b0994b6"},
		{reflect.TypeFor[dataplane.ClassStats](), "90cfa23f622d333d"},
	} {
		text := jsonLayout(part.layout, map[reflect.Type]bool{})
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16]; version != Version || got != part.want {
			t.Errorf("%v: got layout %s and version %d, want %s and %d: increase Version and update this test: %s",
				part.layout, got, Version, part.want, version, text)
		}
	}
}

// TestParseRecord checks that Parse rejects damaged records and those of another
// version. The error of the latter has the version.
func TestParseRecord(t *testing.T) {
	for text, version := range map[string]int{
		`{"Version":99}`:                         99,
		`{"Interface":"eth0","Place":{}}`:        0, // records without a version
		`{"Version":99,"Classes":"of tomorrow"}`: 99,
	} {
		var e *VersionError
		if _, err := Parse([]byte(text)); !errors.As(err, &e) || e.Version != version {
			t.Errorf("%s: got error %v, want one of version %d", text, err, version)
		}
	}
	for name, damage := range map[string]func(*About){
		"":                      func(*About) {},
		"direction":             func(a *About) { a.Direction = 2 },
		"slots":                 func(a *About) { a.Slots = a.Slots[1:] },
		"stage of a class":      func(a *About) { a.Outline.Classes[1].Stage = 2 },
		"number of stages":      func(a *About) { a.Stages = a.Stages[1:] },
		"denominator":           func(a *About) { a.Stages[1].Profile.Buckets[1].Den = 0 },
		"size":                  func(a *About) { a.Stages[1].Profile.Buckets[0].Size = -1 },
		"next stage":            func(a *About) { a.Outline.Stages[1].Then = 2 },
		"cycle":                 func(a *About) { a.Outline.Stages[1].Then = 0 },
		"rate of a queue":       func(a *About) { a.Queued[0].Linked = 0 },
		"link of a queue":       func(a *About) { a.Outline.Queues[0].Link = 1 },
		"number of the queues":  func(a *About) { a.Queued = nil },
		"number of their links": func(a *About) { a.Links = nil },
	} {
		a := About{
			Version: Version, Slots: []uint32{1, 2}, Stages: make(packed[Stage], 2), Queued: make([]Queue, 1),
			Links: []uint16{1},
		}
		a.Outline = compiled.Outline{
			Classes: []compiled.ClassOutline{
				{Stage: 0, Queues: [3]int{-1, 0, -1}}, {Stage: -1, Queues: [3]int{-1, -1, -1}},
			},
			Stages: []compiled.StageOutline{{Then: 1}, {Then: -1}},
			Queues: []compiled.QueueOutline{{Link: 0}}, Links: []string{"l"},
		}
		for i := range a.Stages {
			a.Stages[i].Room, a.Stages[i].Profile.Buckets[0].Den, a.Stages[i].Profile.Buckets[1].Den = 7, 1, 2
		}
		a.Queued[0].Linked = 1
		damage(&a)
		text, err := json.Marshal(&a)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(text)
		if damaged := errors.As(err, new(*DamageError)); damaged != (name != "") || !damaged &&
			!reflect.DeepEqual(got.Stages, a.Stages) {
			t.Errorf("wrong %q: got %+v and error %v", name, got, err)
		}
	}
	for _, text := range []string{
		"", "{", `{"Version":13,"Stages":[{}]}`,
		`{"Version":13,"Outline":{"Stages":[{"Then":-1}]},"Stages":"AAAA"}`,
	} {
		if _, err := Parse([]byte(text)); !errors.As(err, new(*DamageError)) {
			t.Errorf("%q: got error %v, want one about damage", text, err)
		}
	}
}
