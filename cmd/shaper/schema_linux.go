package main

import (
	"reflect"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/detach"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

// liveShow returns the type of customer show --json for a running shaper.
func liveShow() []reflect.Type { return []reflect.Type{reflect.TypeFor[liveCustomerJSON]()} }

// liveOutputs returns the types of the outputs of live commands with --json, by command path without shaper.
func liveOutputs() map[string][]reflect.Type {
	return map[string][]reflect.Type{
		"status": {reflect.TypeFor[stats.Status](), reflect.TypeFor[stats.Remains]()},
		"stats": {
			reflect.TypeFor[stats.Stats](), reflect.TypeFor[stats.CustomerList](),
			reflect.TypeFor[stats.LinkList](),
		},
		"set":             {reflect.TypeFor[control.Change]()},
		"reload":          {reflect.TypeFor[control.ReloadedShaper]()},
		"confirm":         {reflect.TypeFor[control.Confirmed]()},
		"detach":          {reflect.TypeFor[detach.Detached]()},
		"customer add":    {reflect.TypeFor[control.CustomerEffect]()},
		"customer remove": {reflect.TypeFor[control.CustomerEffect]()},
		"customer list":   {reflect.TypeFor[control.CustomerTerms]()},
		"budget list":     {reflect.TypeFor[budgetStateJSON]()},
		"budget show":     {reflect.TypeFor[budgetStateJSON]()},
	}
}
