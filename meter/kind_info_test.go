package meter

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestKindsComplete checks that every row of the table of kinds is complete.
func TestKindsComplete(t *testing.T) {
	names := map[string]bool{}
	described := map[reflect.Type]map[string]bool{} // parameters of each type
	for _, k := range Kinds() {
		info := k.Info()
		if info.Name == "" || info.Name != k.String() || info.Name != strings.ToLower(info.Name) ||
			names[info.Name] {
			t.Errorf("kind %d: got name %q, want the unique lower-case name %q", k, info.Name, k.String())
			continue
		}
		names[info.Name] = true
		if info.Defaults == nil || info.Defaults.Kind() != k {
			t.Errorf("%v: got defaults %#v of another kind", k, info.Defaults)
			continue
		}
		params := slices.Concat(info.Required, info.Optional)
		typ := reflect.TypeOf(info.Defaults)
		if described[typ] == nil {
			described[typ] = map[string]bool{}
		}
		for i, name := range params {
			if name != strings.ToLower(name) || slices.Index(params, name) != i {
				t.Errorf("%v: parameter %q is not in lower case, or is listed twice", k, name)
			}
			described[typ][name] = true
			value := Field(info.Defaults, name)
			switch value.(type) {
			case Rate, time.Duration, int64, int, bool, uint64:
			default:
				t.Errorf("%v: parameter %s is a %T, which has no unit", k, name, value)
			}
			if i < len(info.Required) && !reflect.ValueOf(value).IsZero() {
				t.Errorf("%v: required parameter %s has the default %v, want none", k, name, value)
			}
		}
		buckets := info.Defaults.Buckets()
		if n := len(buckets); n != 1 && n != 2 {
			t.Fatalf("%v: got %d buckets, want 1 or 2", k, n)
		}
		for _, b := range buckets {
			if b.RateName == "" || b.BurstName == "" || b.TokensName == "" {
				t.Errorf("%v: got %+v, want all names", k, b)
			}
			if info.State == StateBuckets &&
				(!slices.Contains(params, strings.ToLower(b.RateName)) ||
					!slices.Contains(params, strings.ToLower(b.BurstName))) {
				t.Errorf("%v: got names of %+v that are no parameters", k, b)
			}
		}
		ownRate := len(buckets) == 2 && buckets[1].RateName != buckets[0].RateName
		if info.Peak && info.Beside || ownRate != (info.Peak || info.Beside) {
			t.Errorf("%v: got Peak %v and Beside %v for the buckets %+v", k, info.Peak, info.Beside, buckets)
		}
		for color, text := range info.texts {
			if twoColor := len(buckets) == 1; (text == "") != (twoColor && Color(color) == Yellow) {
				t.Errorf("%v: got the clause text %q of %s", k, text, clauseColor[color])
			}
		}
	}
	for typ, params := range described {
		for i := range typ.NumField() {
			if name := strings.ToLower(typ.Field(i).Name); !params[name] && name != "gcra" {
				t.Errorf("no kind has parameter %s of %v", name, typ)
			}
		}
	}
	if len(described) != len(names)-1 { // GCRA is a token bucket
		t.Errorf("got %d types for %d kinds, want one less: GCRA is a token bucket", len(described),
			len(names))
	}
}

// TestKindsState compiles every kind and compares its state with that of the table.
func TestKindsState(t *testing.T) {
	for i, params := range allKinds {
		p, kind := compileProfile(t, params), params.(Params).Kind()
		if i < len(kinds) && kind != Kind(i) {
			t.Errorf("%+v is %v, want %v", params, kind, Kind(i))
		}
		if p.Kind() != kind {
			t.Errorf("%+v: got kind %v from the profile, %v from the parameters", params, p.Kind(), kind)
		}
		info := kind.Info()
		if got := p.entries() > 0; got != (info.State == StateLog) {
			t.Errorf("%v: got a log: %v, want %v", kind, got, !got)
		}
		_, warm := p.rule.(warmUp)
		if _, err := p.Integers(); (err == nil) != (!warm &&
			(info.State == StateBuckets || info.State == StateCounts)) {
			t.Errorf("%+v: Integers returned %v", params, err)
		}
		if _, average := p.rule.(tsw); average != (info.State == StateAverage) {
			t.Errorf("%v: got an average: %v, want %v", kind, average, !average)
		}
		c, e := p.Bursts()
		for b, bucket := range params.(Params).Buckets() {
			if burst := [2]int64{c, e}[b]; bucket.Burst != burst {
				t.Errorf("%+v: bucket %d: got %s of %d, want %d", params, b, bucket.BurstName, bucket.Burst,
					burst)
			}
		}
	}
}

// TestFields reads and changes parameters by name.
func TestFields(t *testing.T) {
	var p Params = TRTCM4115{CIR: BitRate(8), CBS: 1, EIR: BitRate(16), EBS: 2}
	if got := Field(p, "EBS"); got != int64(2) {
		t.Errorf("got EBS %v, want 2", got)
	}
	want := TRTCM4115{CIR: BitRate(8), CBS: 7, EIR: BitRate(24), EBS: 2, Coupling: true}
	got := WithField(WithField(WithField(p, "cbs", int64(7)), "Eir", BitRate(24)), "coupling", true)
	if got != Params(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if p != Params(TRTCM4115{CIR: BitRate(8), CBS: 1, EIR: BitRate(16), EBS: 2}) {
		t.Errorf("the parameters were changed in place: %+v", p)
	}
	for what, f := range map[string]func(){
		"no such field": func() { Field(p, "pir") },
		"wrong type":    func() { WithField(p, "cbs", 7) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			f()
		}()
	}
}

// TestKeyedLiterals refuses positional literals of parameters in this package, which every new
// parameter would break. go vet refuses those of other packages.
func TestKeyedLiterals(t *testing.T) {
	params := map[string]bool{}
	for _, k := range Kinds() {
		params[reflect.TypeOf(k.Info().Defaults).Name()] = true
	}
	paths, err := filepath.Glob("*.go")
	if err != nil || len(paths) == 0 {
		t.Fatalf("got no files: %v", err)
	}
	for _, path := range paths {
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || len(lit.Elts) == 0 {
				return true
			}
			name, _ := lit.Type.(*ast.Ident)
			if _, keyed := lit.Elts[0].(*ast.KeyValueExpr); !keyed && name != nil && params[name.Name] {
				t.Errorf("%v: name the fields of %s", files.Position(lit.Pos()), name)
			}
			return true
		})
	}
}

// TestUnknownField checks that the panic of a name that is no parameter names it, and the type.
func TestUnknownField(t *testing.T) {
	for name, f := range map[string]func(){
		"Field":     func() { Field(SRTCM{}, "pir") },
		"WithField": func() { WithField(SRTCM{}, "pir", int64(1)) },
	} {
		func() {
			defer func() {
				text := fmt.Sprint(recover())
				if !strings.Contains(text, "meter.SRTCM") || !strings.Contains(text, `"pir"`) {
					t.Errorf("%s panics with %q", name, text)
				}
			}()
			f()
		}()
	}
}
