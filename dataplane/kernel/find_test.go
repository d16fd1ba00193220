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
// binary of the old version would read missing fields as zeros.
func TestRecordVersion(t *testing.T) {
	const version, want = 5, "51db84f28502a91c"
	text := jsonLayout(reflect.TypeFor[About](), map[reflect.Type]bool{})
	if got := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16]; version != recordVersion || got != want {
		t.Errorf("got layout %s and version %d, want %s and %d: increase recordVersion and update this test: %s", got, recordVersion, want, version, text)
	}
}

// TestParseRecord checks that parseRecord rejects damaged records and those of another
// version. The error of the latter has the version.
func TestParseRecord(t *testing.T) {
	for text, version := range map[string]int{
		`{"Version":99}`:                         99,
		`{"Interface":"eth0","Place":{}}`:        0, // records without a version
		`{"Version":99,"Classes":"of tomorrow"}`: 99,
	} {
		var e *VersionError
		if _, err := parseRecord([]byte(text)); !errors.As(err, &e) || e.Version != version {
			t.Errorf("%s: got error %v, want one of version %d", text, err, version)
		}
	}
	for _, text := range []string{
		"", "{", `{"Version":5,"Direction":2}`, `{"Version":5,"Classes":[{}]}`,
		`{"Version":5,"Outline":{"Classes":[{"Stage":0}]},"Classes":[{}]}`,
		`{"Version":5,"Outline":{"Stages":[{"Then":-1}]},"Stages":[{"Buckets":[{"Den":1},{"Den":0}]}]}`,
		`{"Version":5,"Outline":{"Stages":[{"Then":1}]},"Stages":[{"Buckets":[{"Den":1},{"Den":1}]}]}`,
		`{"Version":5,"Outline":{"Stages":[{"Then":1},{"Then":0}]},"Stages":[{"Buckets":[{"Den":1},{"Den":1}]},{"Buckets":[{"Den":1},{"Den":1}]}]}`,
		`{"Version":5,"Outline":{"Queues":[{"Link":-1}]},"Queued":[{}]}`, `{"Version":5,"Outline":{"Queues":[{"Link":0}]},"Queued":[{"Linked":1}]}`,
	} {
		if _, err := parseRecord([]byte(text)); err == nil || errors.As(err, new(*VersionError)) {
			t.Errorf("%q: got error %v, want one about damage", text, err)
		}
	}
	if _, err := parseRecord([]byte(`{"Version":5,"Outline":{"Classes":[{"Stage":-1,"Queues":[-1,-1,-1]}]},"Classes":[{"Stage":-1}]}`)); err != nil {
		t.Error(err)
	}
}
