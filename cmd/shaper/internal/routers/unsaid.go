package routers

import (
	"reflect"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// Unsaid refuses every field that is set in a part of a policy and not listed in known. An exporter
// lists the fields that it wrote, and the fields that it refused with a better reason.
func (e *Export) Unsaid(what string, part any, reason string, known ...string) {
	for _, name := range unsaid.Fields(part, known...) {
		e.Cannot("%s: %s: %s", what, policyKey(part, name), reason)
	}
}

// policyKey returns a field's key in policies: for a match as in dataplane.MatchFields, otherwise the
// name of the field in lower case.
func policyKey(part any, name string) string {
	if _, match := part.(*dataplane.Match); match {
		if name == "Customer" {
			return "per: customer"
		}
		if name == "Cgroups" {
			return "cgroup"
		}
		var m dataplane.Match
		field := reflect.ValueOf(&m).Elem().FieldByName(name).Addr().Interface()
		for _, f := range dataplane.MatchFields {
			if any(f.List(&m)) == field {
				return f.Name
			}
		}
	}
	return strings.ToLower(name)
}
