package process

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/detach"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// schemas are the types of the schemas in openapi.json.
var schemas = map[string]reflect.Type{
	"Error": reflect.TypeFor[control.Error](), "Count": reflect.TypeFor[dataplane.Count](), "Status": reflect.TypeFor[stats.Status](),
	"Waiting": reflect.TypeFor[stats.Remains](), "HostBudget": reflect.TypeFor[stats.HostBudget](), "Amounts": reflect.TypeFor[budgets.Amounts](),
	"Share": reflect.TypeFor[budgets.State](), "Stats": reflect.TypeFor[stats.Stats](), "ClassStats": reflect.TypeFor[stats.ClassStats](),
	"ColorStats": reflect.TypeFor[stats.ColorStats](), "MeterStats": reflect.TypeFor[stats.MeterStats](), "KeyStats": reflect.TypeFor[say.KeyCounts](),
	"BucketStats": reflect.TypeFor[stats.BucketStats](), "QueueStats": reflect.TypeFor[stats.QueueStats](), "Lost": reflect.TypeFor[stats.Lost](), "Customers": reflect.TypeFor[stats.CustomerList](),
	"CustomerStats": reflect.TypeFor[stats.CustomerStats](), "Customer": reflect.TypeFor[customerJSON](), "CustomerDirection": reflect.TypeFor[customerDirectionJSON](),
	"CustomerTerms": reflect.TypeFor[control.CustomerTerms](), "CustomerPage": reflect.TypeFor[control.CustomerPage](), "CustomerChange": reflect.TypeFor[control.CustomerChange](),
	"CustomerEffect": reflect.TypeFor[control.CustomerEffect](), "CustomerEffects": reflect.TypeFor[control.CustomerEffects](),
	"Change": reflect.TypeFor[control.Change](), "Reload": reflect.TypeFor[control.Reloaded](), "Tree": reflect.TypeFor[stats.Tree](),
	"Links": reflect.TypeFor[stats.LinkList](), "LinkStats": reflect.TypeFor[stats.LinkStats](), "Held": reflect.TypeFor[stats.HeldStats](),
	"ReloadedShaper": reflect.TypeFor[control.ReloadedShaper](), "ClassChange": reflect.TypeFor[compiled.ClassChange](),
	"Confirmed": reflect.TypeFor[control.Confirmed](), "Detached": reflect.TypeFor[detach.Detached](), "DetachedDirection": reflect.TypeFor[detach.Direction](),
}

// schema is the part of a JSON schema that openapi.json uses.
type schema struct {
	Ref        string `json:"$ref"`
	Type       any
	Format     string
	Required   []string
	Properties map[string]schema
	Items      *schema
	Additional any `json:"additionalProperties"`
}

// openAPI is the part of openapi.json that the test reads.
type openAPI struct {
	Paths map[string]map[string]struct {
		Parameters []struct{ Name, In string }
		Responses  map[string]any
	}
	Components struct{ Schemas map[string]schema }
}

// TestOpenAPI checks that openapi.json has exactly the paths, methods, parameters and fields of
// the API.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	var api openAPI
	if err := json.Unmarshal(control.OpenAPI, &api); err != nil {
		t.Fatal(err)
	}
	paths := map[string]bool{}
	for _, r := range control.Routes() {
		paths[r.Path] = true
		var methods []string
		for method, op := range api.Paths[r.Path] {
			methods = append(methods, strings.ToUpper(method))
			var query []string
			for _, p := range op.Parameters {
				if p.In == "query" {
					query = append(query, p.Name)
				} else if p.In == "header" {
					if p.Name != "If-Match" {
						t.Errorf("%s: unknown header %s", r.Path, p.Name)
					}
				} else if !strings.Contains(r.Path, "{"+p.Name+"}") {
					t.Errorf("%s has no %s", r.Path, p.Name)
				}
			}
			if want := r.Query[strings.ToUpper(method)]; !slices.Equal(query, want) {
				t.Errorf("%s %s: got parameters %q, want %q", method, r.Path, query, want)
			}
			if op.Responses["200"] == nil || op.Responses["400"] == nil ||
				op.Responses["403"] == nil == (method != "get") {
				t.Errorf("%s %s: got responses %v, want 200, 400, and for all but GET 403", method, r.Path,
					slices.Sorted(maps.Keys(op.Responses)))
			}
		}
		if slices.Sort(methods); !slices.Equal(methods, r.Methods) {
			t.Errorf("%s: got %q, want %q", r.Path, methods, r.Methods)
		}
	}
	for path := range api.Paths {
		if !paths[path] {
			t.Errorf("there is no %s", path)
		}
	}
	for name, s := range api.Components.Schemas {
		if schemas[name] == nil {
			t.Errorf("schema %s has no type", name)
			continue
		}
		checkSchema(t, name, s, schemas[name])
	}
	for name := range schemas {
		if _, ok := api.Components.Schemas[name]; !ok {
			t.Errorf("there is no schema %s", name)
		}
	}
}

// checkSchema checks that a schema describes the JSON form of a type.
func checkSchema(t *testing.T, at string, s schema, goType reflect.Type) {
	t.Helper()
	kind := s.Type
	if list, ok := s.Type.([]any); ok { // or null
		if goType.Kind() != reflect.Pointer || list[1] != "null" {
			t.Errorf("%s: %v cannot be %v", at, goType, list)
		}
		kind = list[0]
	}
	if goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	if s.Ref != "" {
		name := strings.TrimPrefix(s.Ref, "#/components/schemas/")
		if schemas[name] != goType {
			t.Errorf("%s: schema %s is of %v, want %v", at, name, schemas[name], goType)
		}
		return
	}
	want := ""
	switch goType.Kind() {
	case reflect.Struct, reflect.Map:
		want = "object"
	case reflect.Slice, reflect.Array:
		want = "array"
	case reflect.Bool:
		want = "boolean"
	case reflect.String:
		want = "string"
	case reflect.Float64:
		want = "number"
	default:
		want = "integer"
	}
	if goType == reflect.TypeFor[time.Time]() {
		if kind != "string" || s.Format != "date-time" {
			t.Errorf("%s: got %v %q, want a time", at, kind, s.Format)
		}
		return
	}
	if kind != want {
		t.Errorf("%s: got type %v, want %s", at, kind, want)
		return
	}
	switch goType.Kind() {
	case reflect.Slice, reflect.Array:
		checkSchema(t, at+"[]", *s.Items, goType.Elem())
	case reflect.Struct:
		checkFields(t, at, s, goType)
	}
}

// checkFields checks the properties of an object. A field that is always there is required.
func checkFields(t *testing.T, at string, s schema, goType reflect.Type) {
	t.Helper()
	known := map[string]bool{}
	for _, f := range reflect.VisibleFields(goType) {
		tag := f.Tag.Get("json")
		if f.Anonymous || tag == "" || len(f.Index) > 1 && !promoted(goType, f) {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		known[name] = true
		p, ok := s.Properties[name]
		if !ok {
			t.Errorf("%s has no %s", at, name)
			continue
		}
		if required := !strings.Contains(options, "omit"); required != slices.Contains(s.Required, name) {
			t.Errorf("%s.%s: want required: %v", at, name, required)
		}
		checkSchema(t, at+"."+name, p, f.Type)
	}
	for name := range s.Properties {
		if !known[name] {
			t.Errorf("%s: %v has no %s", at, goType, name)
		}
	}
}

// promoted reports whether the JSON form of an outer type has a field of an inner one.
func promoted(outer reflect.Type, f reflect.StructField) bool {
	found, ok := outer.FieldByName(f.Name)
	return ok && slices.Equal(found.Index, f.Index)
}
