// Package policytest sets each field of a policy alone, so that tests of an edge find a field which
// the edge forgets. The fields come from the structs by reflection: a new field is set without being
// listed anywhere. Values does the same for other structs, such as counters.
package policytest

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Base is a small policy whose fields can be set.
type Base struct {
	Name string
	New  func() *dataplane.Policy // a new copy
}

// Setting is a value for a field of a base.
type Setting struct {
	Field string // such as Match.SPort or Queue.Weight
	Value string
	leaf  int // index of the field in the walk over the base
	value reflect.Value
}

// leaf is a settable field.
type leaf struct {
	field  string
	value  reflect.Value
	within []reflect.Value // structs that contain it, the innermost last
}

// walker collects the leaves of a policy.
type walker struct {
	leaves []leaf
	within []reflect.Value // structs that contain the present field
	seen   map[any]bool    // pointers that were followed
	commit []func()        // copy changed parameters back into their interfaces
}

var (
	rateType     = reflect.TypeFor[meter.Rate]()
	fractionType = reflect.TypeFor[dataplane.Fraction]()
)

// walk collects the leaves below v, the value of a field. A rate and a fraction are one leaf each.
func (w *walker) walk(field string, v reflect.Value) {
	switch t := v.Type(); {
	case t == rateType, t == fractionType:
		w.add(field, v)
	case t.Kind() == reflect.Struct && t.PkgPath() != "net/netip":
		for i := range t.NumField() {
			f := t.Field(i)
			name := t.Name() + "." + f.Name
			if f.Anonymous {
				name = field
			}
			if f.IsExported() {
				w.within = append(w.within, v)
				w.walk(name, v.Field(i))
				w.within = w.within[:len(w.within)-1]
			}
		}
	case t.Kind() == reflect.Array:
		for i := range v.Len() {
			w.walk(field, v.Index(i))
		}
	case t.Kind() == reflect.Slice && composite(t.Elem()):
		w.add(field, v)
		for i := range v.Len() {
			w.element(field, v.Index(i))
		}
	case t.Kind() == reflect.Pointer:
		w.add(field, v)
		if !v.IsNil() && t.Elem() != rateType && !w.seen[v.Interface()] {
			w.seen[v.Interface()] = true
			w.walk(field, v.Elem())
		}
	case t.Kind() == reflect.Interface:
		w.add(field, v)
		if !v.IsNil() {
			params := reflect.New(v.Elem().Type()).Elem()
			params.Set(v.Elem())
			w.commit = append(w.commit, func() {
				if !v.IsNil() {
					v.Set(params)
				}
			})
			w.walk(field, params)
		}
	default:
		w.add(field, v)
	}
}

func (w *walker) add(field string, v reflect.Value) {
	w.leaves = append(w.leaves, leaf{field, v, slices.Clone(w.within)})
}

// element walks over an element of a list, which is never nil.
func (w *walker) element(field string, v reflect.Value) {
	if v.Kind() == reflect.Pointer {
		if w.seen[v.Interface()] {
			return
		}
		w.seen[v.Interface()] = true
		v = v.Elem()
	}
	w.walk(field, v)
}

// composite reports whether elements of a list have fields of their own.
func composite(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && t.PkgPath() != "net/netip"
}

func walkPolicy(p *dataplane.Policy) *walker {
	w := &walker{seen: map[any]bool{}}
	w.walk("Policy", reflect.ValueOf(p).Elem())
	return w
}

// candidates returns values that a field may have instead of its present one.
func candidates(v reflect.Value) (out []reflect.Value) {
	t := v.Type()
	add := func(values ...any) {
		for _, x := range values {
			out = append(out, reflect.ValueOf(x).Convert(t))
		}
	}
	one := func(first, last uint64) []dataplane.Range { return []dataplane.Range{{First: first, Last: last}} }
	switch x := v.Interface().(type) {
	case meter.Rate:
		add(meter.BitRate(8_000_000), meter.BitRate(800_000), meter.Per(100, time.Second))
	case *meter.Rate:
		add(new(meter.BitRate(16_000_000)), (*meter.Rate)(nil))
	case dataplane.Fraction:
		add(dataplane.Fraction{Num: 1, Den: 4}, dataplane.Fraction{Num: 0, Den: 1})
	case []dataplane.Range:
		add(one(6, 6), one(1, 1), one(3, 60), one(0x8847, 0x8847), one(0x0800, 0x0800), one(0x0806, 0x0806))
	case []netip.Prefix:
		add([]netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
			[]netip.Prefix{netip.MustParsePrefix("2001:db8:7::/48")})
	case []uint64:
		add([]uint64{7}, []uint64{7<<12 | 8})
	case []string:
		add([]string{"/"}, []string{"/", "/none"})
	case []dataplane.Mark:
		for f := dataplane.Field(0); f.String() != fmt.Sprintf("Field(%d)", f); f++ {
			add([]dataplane.Mark{{Field: f, Value: 1}})
		}
	case map[uint32]meter.Color:
		add(map[uint32]meter.Color{1: meter.Red}, map[uint32]meter.Color{1: meter.Yellow})
	case *dataplane.Action:
		add(&dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 1}}})
	case time.Duration:
		add(2*x, x/2, time.Millisecond, 20*time.Millisecond, 200*time.Millisecond, time.Second,
			time.Duration(0))
	case string:
		add(x+"x", "/x")
	case bool:
		add(!x)
	default:
		switch t.Kind() {
		case reflect.Uint8: // an enumeration, or a length of a prefix
			for n := range uint8(16) {
				add(n)
			}
			add(uint8(24), uint8(64))
		case reflect.Int, reflect.Int64:
			for _, n := range []int64{2, 1, 3, 7, 64, 1000, 20_000, 90_000, 50_000_000, 0} {
				add(n)
			}
		case reflect.Uint32, reflect.Uint64:
			add(v.Uint()+1, v.Uint()-1)
			for _, n := range []uint64{1, 2, 5, 1 << 20, 0} {
				add(n)
			}
		case reflect.Pointer, reflect.Interface, reflect.Slice:
			out = append(out, reflect.Zero(t))
		}
	}
	return slices.DeleteFunc(out, func(c reflect.Value) bool {
		return reflect.DeepEqual(c.Interface(), v.Interface())
	})
}

// enumeration reports whether each value of a type is tried, and not only the first that compiles.
func enumeration(t reflect.Type) bool {
	return t.Kind() == reflect.Uint8 && t.Name() != "uint8" || t.Kind() == reflect.Slice
}

// inert reports whether the field has no effect in its place, although it can be set: Compile checks the
// source of the input colors of a meter that is not color-aware. Every other field is expected to have an
// effect wherever it can be set.
func (l *leaf) inert() bool {
	if l.field != "PreColor.From" && l.field != "PreColor.Map" {
		return false
	}
	for _, v := range slices.Backward(l.within) {
		if m, ok := v.Interface().(dataplane.Meter); ok {
			return !m.Aware
		}
	}
	return false
}

// Settings returns the values to which the fields of the base can be set alone: the policy
// compiles with each.
func (b Base) Settings() (out []Setting) {
	leaves := walkPolicy(b.New()).leaves
	for i, l := range leaves {
		if l.inert() {
			continue
		}
		for _, c := range candidates(l.value) {
			s := Setting{l.field, fmt.Sprintf("%+v", c.Interface()), i, c}
			if b.With(s) == nil {
				continue
			}
			out = append(out, s)
			if !enumeration(l.value.Type()) {
				break
			}
		}
	}
	return out
}

// With returns the base with fields set, or nil if it does not compile.
func (b Base) With(settings ...Setting) *dataplane.Policy {
	p := b.New()
	w := walkPolicy(p)
	for _, s := range settings {
		w.leaves[s.leaf].value.Set(s.value)
	}
	for _, commit := range slices.Backward(w.commit) {
		commit()
	}
	if _, err := compiled.Compile(p); err != nil {
		return nil
	}
	return p
}

// SameField reports whether two settings are values of one field.
func SameField(a, b Setting) bool { return a.leaf == b.leaf }

func (s Setting) String() string { return strings.TrimSpace(s.Field + " " + s.Value) }

// unitOfLimits must be the unit of the flows, so it is never set alone: a base has it.
const unitOfLimits = "Envelope.Packets"

// Unset returns the fields set by no setting and by no base. A test must fail if there are any: add
// a base in which the field can be set, or a candidate of its type.
func Unset() (fields []string) {
	set, all := map[string]bool{}, map[string]bool{}
	for _, b := range Bases() {
		for _, l := range walkPolicy(b.New()).leaves {
			all[l.field] = true
			switch l.value.Kind() {
			case reflect.Pointer, reflect.Interface, reflect.Slice: // a part: only bases set it
				set[l.field] = set[l.field] || !l.value.IsZero()
			default:
				set[l.field] = set[l.field] || l.field == unitOfLimits && !l.value.IsZero()
			}
		}
		for _, s := range b.Settings() {
			set[s.Field] = true
		}
	}
	for f := range all {
		if !set[f] {
			fields = append(fields, f)
		}
	}
	slices.Sort(fields)
	return fields
}
