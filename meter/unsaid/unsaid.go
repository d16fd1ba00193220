// Package unsaid finds fields missing in the hand-written lists of the program's edges. An edge
// turns a part of a policy into something else: a router's configuration, a script of a server, a
// map of the kernel. The edge names the fields it expressed. Fields returns all other set fields,
// and the edge refuses them. So each edge refuses a new field of a struct until it knows the field.
package unsaid

import (
	"fmt"
	"reflect"
	"slices"
)

// Fields returns the Go names of the fields that are set but not expressed, in their order. part is
// a struct or a pointer to one. A field is set unless it is zero or an empty list. Fields of an
// embedded struct count as those of the struct, under their own names. Unexported fields are
// ignored. Fields panics if the struct lacks a field named in expressed.
func Fields(part any, expressed ...string) (names []string) {
	v := reflect.Indirect(reflect.ValueOf(part))
	for _, f := range reflect.VisibleFields(v.Type()) {
		if !f.IsExported() || f.Anonymous {
			continue
		}
		if i := slices.Index(expressed, f.Name); i >= 0 {
			expressed = slices.Delete(slices.Clone(expressed), i, i+1)
		} else if set(v.FieldByIndex(f.Index)) {
			names = append(names, f.Name)
		}
	}
	if len(expressed) > 0 {
		panic(fmt.Sprintf("unsaid: %v has no field %v", v.Type(), expressed))
	}
	return names
}

// set reports whether a field is neither zero nor an empty list.
func set(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() > 0
	}
	return !v.IsZero()
}
