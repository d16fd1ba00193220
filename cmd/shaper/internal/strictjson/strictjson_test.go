package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

type inner struct {
	Kind string `json:"kind"`
	Name string // without a tag
}

type outer struct {
	inner
	Inner  `json:"nested"`
	List   []inner           `json:"list,omitempty"`
	Map    map[string]string `json:"map,omitempty"`
	On     *bool             `json:"on,omitempty"`
	Until  time.Time         `json:"until,omitzero"`
	Hidden int               `json:"-"`
	Any    any               `json:"any"`
	Raw    json.RawMessage   `json:"raw"`
}

// Inner is exported, because encoding/json ignores fields that are not.
type Inner struct {
	Depth int `json:"depth"`
}

// names returns the content of an object with n names.
func names(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"n%d":"v"`, i)
	}
	return strings.Join(all, ",")
}

// TestUnmarshal decodes texts that encoding/json accepts.
func TestUnmarshal(t *testing.T) {
	for text, want := range map[string]string{ // part of the error
		`{}`:                                 "",
		` { "kind" : "a" , "Name" : "b" } `:  "",
		`{"kind":"a","list":[{"kind":"b"}]}`: "",
		`{"\u006bind":"a"}`:                  "",
		`{"map":{"kind":"a","Kind":"b"},"on":true,"until":"2026-01-01T00:00:00Z","any":{"x":[1,{"y":-1.5e3}]},"raw":{"Kind":1}}`: "",
		`{"nested":{"depth":1}}`:         "",
		`null`:                           "",
		`{"list":null,"map":null,"x":1}`: `unknown field "x"`,
		`{"Kind":"a"}`:                   `unknown field "Kind": want "kind"`,
		`{"name":"a"}`:                   `unknown field "name": want "Name"`,
		`{"Hidden":1}`:                   `unknown field "Hidden"`,
		`{"depth":1}`:                    `unknown field "depth"`,
		`{"kind":"a","kind":"a"}`:        `field "kind" is there twice`,
		`{"kind":"a","\u006bind":"b"}`:   `field "kind" is there twice`,
		`{"map":{"a":"1","a":"2"}}`:      `field "a" is there twice`,
		`{"any":[{"a":1,"a":2}]}`:        `field "a" is there twice`,
		`{"raw":{"a":1,"a":2}}`:          `field "a" is there twice`,
		`{"list":[{},{"KIND":"b"}]}`:     `unknown field "KIND"`,
		`{"list":[{},{},{},{}]}`:         "a list has more than 3 elements",
		`{"any":[1,2,3]}`:                "",
		`{"map":{` + names(100) + `}}`:   "",
		`{"map":{` + names(101) + `}}`:   "an object has more than 100 names",
		`{"raw":[{` + names(101) + `}]}`: "an object has more than 100 names",
		`{"kind":"a"} {}`:                "after top-level value",
		`{"kind":"a"`:                    "unexpected end",
		``:                               "unexpected end",
		"{\"kind\":\"\xff\"}":            "not UTF-8",
		`{"any":` + strings.Repeat("[", 50) + strings.Repeat("]", 50) + `}`: "more than 16 objects",
		strings.Repeat("[", 1_000_000):                                      "exceeded max depth",
		`{"until":"yesterday"}`:                                             "cannot parse",
		`{"kind":5}`:                                                        "cannot unmarshal number",
	} {
		var got, before outer
		err := Unmarshal([]byte(text), &got, 3)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: got %v, want %q", text, err, want)
		}
		if strings.Contains(want, "field") && !reflect.DeepEqual(got, before) {
			t.Errorf("%.80s: got %+v with an error", text, got)
		}
	}
	var list []inner
	if err := Unmarshal([]byte(`[{},{}]`), &list, 1); !errors.As(err, new(*TooManyError)) {
		t.Errorf("got %v", err)
	}
	if err := Unmarshal([]byte(`[{},{}]`), &list, 0); err != nil || len(list) != 2 {
		t.Errorf("no limit: got %v, %v", list, err)
	}
}

// FuzzUnmarshal checks that what Unmarshal accepts is what json.Unmarshal decodes, that it equals its own
// encoding, and that nothing panics.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"kind":"a","list":[{"kind":"b"}],"map":{"a":"b"},"on":true,"any":[1,{"x":"\u0041"}]}`))
	f.Add([]byte(`{"Kind":"a","kind":"b"}`))
	f.Add([]byte("[1, 2 ,\"\\\"\"]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var strict, plain outer
		if Unmarshal(text, &strict, 100) != nil {
			return
		}
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.DisallowUnknownFields()
		if err := d.Decode(&plain); err != nil || !reflect.DeepEqual(strict, plain) {
			t.Errorf("%q: got %+v, encoding/json %+v, %v", text, strict, plain, err)
		}
	})
}
