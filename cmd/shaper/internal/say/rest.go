package say

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// Rest describes the fields set in a struct but not in known: those for which nobody wrote a
// description. It describes every new field, plainly but never silently.
func Rest(part any, known ...string) (out []Part) {
	v := reflect.Indirect(reflect.ValueOf(part))
	for _, name := range unsaid.Fields(part, known...) {
		out = append(out,
			Part{strings.ToLower(name), fmt.Sprintf("%+v", reflect.Indirect(v.FieldByName(name)))})
	}
	return out
}

// restWords writes Rest as words, with a separator between key and text.
func restWords(separator string, part any, known ...string) (out []string) {
	for _, p := range Rest(part, known...) {
		out = append(out, p.Key+separator+p.Text)
	}
	return out
}
