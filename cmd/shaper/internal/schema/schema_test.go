package schema

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

type count struct {
	Packets int64 `json:"packets"`
}

type inner struct {
	Deep bool `json:"deep"`
}

type document struct {
	count
	*inner
	Name   string         `json:"name"`
	At     time.Time      `json:"at"`
	Rate   *float64       `json:"rate"`
	Some   *count         `json:"some,omitempty"`
	List   []document     `json:"list"`
	Map    map[string]int `json:"map,omitempty"`
	Hidden int            `json:"-"`
	Plain  uint8
	First  struct{ A int } `json:"first"`
	Other  struct{ B int } `json:"other"`
}

// MoreProperties adds a property.
func (document) MoreProperties() map[string]any { return map[string]any{"extra": int64(0)} }

// TestOf checks the schema of each kind of field.
func TestOf(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(Of("x", reflect.TypeFor[document]()))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"$defs":{` +
		`"count":{"additionalProperties":false,"properties":{"packets":{"type":"integer"}},"required":["packets"],"type":"object"},` +
		`"document":{"additionalProperties":false,"properties":{` +
		`"Plain":{"type":"integer"},"at":{"format":"date-time","type":"string"},"deep":{"type":"boolean"},` +
		`"extra":{"type":"integer"},"first":{"$ref":"#/$defs/object"},"list":{"items":{"$ref":"#/$defs/document"},"type":"array"},` +
		`"map":{"additionalProperties":{"type":"integer"},"type":"object"},"name":{"type":"string"},` +
		`"other":{"$ref":"#/$defs/object2"},"packets":{"type":"integer"},"rate":{"anyOf":[{"type":"number"},{"type":"null"}]},"some":{"$ref":"#/$defs/count"}},` +
		`"required":["packets","name","at","rate","list","Plain","first","other"],"type":"object"},` +
		`"object":{"additionalProperties":false,"properties":{"A":{"type":"integer"}},"required":["A"],"type":"object"},` +
		`"object2":{"additionalProperties":false,"properties":{"B":{"type":"integer"}},"required":["B"],"type":"object"}},` +
		`"$ref":"#/$defs/document","$schema":"https://json-schema.org/draft/2020-12/schema","title":"x"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got, _ = json.Marshal(Of("x", reflect.TypeFor[count](), reflect.TypeFor[[]string]())["anyOf"])
	if want := `[{"$ref":"#/$defs/count"},{"items":{"type":"string"},"type":"array"}]`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
