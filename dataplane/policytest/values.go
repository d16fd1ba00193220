package policytest

import (
	"fmt"
	"reflect"
	"regexp"
)

// Value is a value without parts inside another one, such as a counter.
type Value struct {
	reflect.Value
	Name string // path of fields from the outer value, with indexes of arrays, such as Stats.Green[0]
}

// Values returns the values in v, which is called name. Elements of a list have the name of the list.
func Values(name string, v reflect.Value) (out []Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			out = append(out, Values(name+"."+v.Type().Field(i).Name, v.Field(i))...)
		}
	case reflect.Array:
		for i := range v.Len() {
			out = append(out, Values(fmt.Sprintf("%s[%d]", name, i), v.Index(i))...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = append(out, Values(name, v.Index(i))...)
		}
	default:
		out = []Value{{v, name}}
	}
	return out
}

// FieldOf returns the name of a value without indexes.
func FieldOf(name string) string { return indexes.ReplaceAllString(name, "") }

var indexes = regexp.MustCompile(`\[\d+\]`)
