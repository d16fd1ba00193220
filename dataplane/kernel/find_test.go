package kernel

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// layout describes a type, with all that is in it, as JSON has it.
func layout(t reflect.Type, seen map[reflect.Type]bool) string {
	switch {
	case seen[t] || t == reflect.TypeFor[time.Time]():
		return t.String()
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice:
		return "[]" + layout(t.Elem(), seen)
	case t.Kind() == reflect.Array:
		return fmt.Sprintf("[%d]%s", t.Len(), layout(t.Elem(), seen))
	case t.Kind() != reflect.Struct:
		return t.Kind().String()
	}
	seen[t] = true
	var out strings.Builder
	for f := range t.Fields() {
		if f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		fmt.Fprintf(&out, "%s %s;", f.Name, layout(f.Type, seen))
	}
	return "{" + out.String() + "}"
}

// TestRecordVersion holds that a record of another layout has another version: a
// binary that reads it would take zeros for what is missing.
func TestRecordVersion(t *testing.T) {
	const version, want = 4, "51db84f28502a91c"
	text := layout(reflect.TypeFor[About](), map[reflect.Type]bool{})
	if got := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16]; version != recordVersion || got != want {
		t.Errorf("the layout of records is %s, and their version is %d: if it has changed, give recordVersion another number and note both here: %s", got, recordVersion, text)
	}
}

// TestParse holds that a record which no shaper of this version wrote is refused,
// and which version did, if it says so.
func TestParse(t *testing.T) {
	for text, version := range map[string]int{
		`{"Version":99}`:                         99,
		`{"Interface":"eth0","Place":{}}`:        0, // before records had a version
		`{"Version":99,"Classes":"of tomorrow"}`: 99,
	} {
		var e *VersionError
		if _, err := parseRecord([]byte(text)); !errors.As(err, &e) || e.Version != version {
			t.Errorf("%s: %v: want version %d", text, err, version)
		}
	}
	for _, text := range []string{
		"", "{", `{"Version":4,"Direction":2}`, `{"Version":4,"Classes":[{}]}`,
		`{"Version":4,"Outline":{"Classes":[{"Stage":0}]},"Classes":[{}]}`,
		`{"Version":4,"Outline":{"Stages":[{"Then":-1}]},"Stages":[{"Buckets":[{"Den":1},{"Den":0}]}]}`,
		`{"Version":4,"Outline":{"Stages":[{"Then":1}]},"Stages":[{"Buckets":[{"Den":1},{"Den":1}]}]}`,
		`{"Version":4,"Outline":{"Stages":[{"Then":1},{"Then":0}]},"Stages":[{"Buckets":[{"Den":1},{"Den":1}]},{"Buckets":[{"Den":1},{"Den":1}]}]}`,
		`{"Version":4,"Outline":{"Queues":[{"Link":-1}]},"Queued":[{}]}`, `{"Version":4,"Outline":{"Queues":[{"Link":0}]},"Queued":[{"Linked":1}]}`,
	} {
		if _, err := parseRecord([]byte(text)); err == nil || errors.As(err, new(*VersionError)) {
			t.Errorf("%q: %v: want that it is damaged", text, err)
		}
	}
	if _, err := parseRecord([]byte(`{"Version":4,"Outline":{"Classes":[{"Stage":-1,"Queues":[-1,-1,-1]}]},"Classes":[{"Stage":-1}]}`)); err != nil {
		t.Error(err)
	}
}
