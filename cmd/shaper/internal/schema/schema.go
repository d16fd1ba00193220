// Package schema derives JSON Schemas (2020-12) from the Go types of JSON outputs.
package schema

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Properties is implemented by types whose MarshalJSON adds properties to those of their fields.
type Properties interface {
	// MoreProperties returns a value for each property that may be added, by name.
	MoreProperties() map[string]any
}

// Object is a part of a schema.
type Object = map[string]any

// Of returns the schema of a document that is the JSON form of one of the types. Objects have no properties
// beside those of the types.
func Of(title string, types ...reflect.Type) Object {
	d := definitions{names: map[reflect.Type]string{}, list: Object{}}
	out := Object{"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
	if len(types) == 1 {
		for key, value := range d.of(types[0]) {
			out[key] = value
		}
	} else {
		var any []Object
		for _, t := range types {
			any = append(any, d.of(t))
		}
		out["anyOf"] = any
	}
	if len(d.list) > 0 {
		out["$defs"] = d.list
	}
	return out
}

// definitions are the schemas of structs, each of which is written once.
type definitions struct {
	names map[reflect.Type]string
	list  Object
}

// of returns the schema of a type. A pointer may be null.
func (d *definitions) of(t reflect.Type) Object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return Object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return Object{}
	case t.Kind() == reflect.Pointer:
		return Object{"anyOf": []Object{d.of(t.Elem()), {"type": "null"}}}
	}
	switch t.Kind() {
	case reflect.Bool:
		return Object{"type": "boolean"}
	case reflect.String:
		return Object{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return Object{"type": "number"}
	case reflect.Interface:
		return Object{}
	case reflect.Slice, reflect.Array:
		return Object{"type": "array", "items": d.of(t.Elem())}
	case reflect.Map:
		return Object{"type": "object", "additionalProperties": d.of(t.Elem())}
	case reflect.Struct:
		return Object{"$ref": "#/$defs/" + d.define(t)}
	}
	return Object{"type": "integer"}
}

// define adds the schema of a struct, and returns its name.
func (d *definitions) define(t reflect.Type) string {
	if name, known := d.names[t]; known {
		return name
	}
	name := t.Name()
	if name == "" { // an anonymous type
		name = "object"
	}
	for first, n := name, 2; d.list[name] != nil; n++ {
		name = fmt.Sprint(first, n)
	}
	d.names[t], d.list[name] = name, Object{} // filled below, because types can contain themselves
	properties, required := Object{}, []string{}
	d.fields(t, true, func(field string, schema Object, always bool) {
		if properties[field] = schema; always && !slices.Contains(required, field) {
			required = append(required, field)
		}
	})
	if more, ok := reflect.Zero(t).Interface().(Properties); ok {
		for field, value := range more.MoreProperties() {
			properties[field] = d.of(reflect.TypeOf(value))
		}
	}
	d.list[name] = Object{
		"type": "object", "properties": properties, "required": required, "additionalProperties": false,
	}
	return name
}

// fields calls add for each property of a struct, also for those of embedded ones. always is false for an
// embedded pointer, which may be nil.
func (d *definitions) fields(t reflect.Type, always bool, add func(name string, schema Object, always bool)) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous && name == "":
			if f.Type.Kind() == reflect.Pointer {
				d.fields(f.Type.Elem(), false, add)
			} else {
				d.fields(f.Type, always, add)
			}
			continue
		case !tagged || name == "":
			name = f.Name
		}
		schema := d.of(f.Type)
		omitted := strings.Contains(options, "omit")
		if omitted && f.Type.Kind() == reflect.Pointer {
			schema = d.of(f.Type.Elem()) // never null
		}
		add(name, schema, always && !omitted)
	}
}
