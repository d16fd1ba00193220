package meter

import (
	"fmt"
	"time"
)

// FieldError is the error of one parameter.
type FieldError struct {
	Field  string // name of the parameter, such as CIR, CBS, Rate or Limit
	Reason string // end of a sentence beginning with Field
}

func (e *FieldError) Error() string { return e.Field + " " + e.Reason }

// fieldErrors collects the errors of a set of parameters. Its methods check parameters and add an
// error for each invalid one. clause is the clause of an RFC to cite, or "".
type fieldErrors []error

func (f *fieldErrors) add(field, reason string) { *f = append(*f, &FieldError{field, reason}) }

// optionalRate checks a rate, which may be zero. It reports whether the rate is valid, as rate
// does.
func (f *fieldErrors) optionalRate(field string, r Rate) bool {
	if reason := r.invalidReason(); reason != "" {
		f.add(field, reason)
		return false
	}
	return true
}

// rate checks a rate, which must be above zero.
func (f *fieldErrors) rate(field string, r Rate, clause string) bool {
	if !f.optionalRate(field, r) {
		return false
	}
	if r.Bytes == 0 {
		f.add(field, "must be above zero"+cite(clause))
	}
	return r.Bytes > 0
}

// rates checks CIR and PIR.
func (f *fieldErrors) rates(cir, pir Rate, clause string) {
	okC, okP := f.rate("CIR", cir, clause), f.rate("PIR", pir, clause)
	if okC && okP && pir.Cmp(cir) < 0 {
		f.add("PIR", fmt.Sprintf("%v is below CIR %v: it must be equal or greater%s", pir, cir, cite(clause)))
	}
}

func (f *fieldErrors) bytes(field string, n int64) {
	if n < 0 {
		f.add(field, "is negative")
	}
}

func (f *fieldErrors) positive(field string, n int64, clause string) {
	if n <= 0 {
		f.add(field, "must be above zero"+cite(clause))
	}
}

// Bounds of all windows.
const (
	minWindow = time.Microsecond
	maxWindow = 366 * 24 * time.Hour
	maxLimit  = 1 << 47 // bytes
)

func (f *fieldErrors) span(field string, d, longest time.Duration) {
	if d < minWindow || d > longest {
		f.add(field, "of "+d.String()+" is not between "+minWindow.String()+" and "+longest.String())
	}
}

func (f *fieldErrors) limit(n int64) {
	f.positive("Limit", n, "")
	if n > maxLimit {
		f.add("Limit", "is above 2^47 bytes")
	}
}

func cite(clause string) string {
	if clause == "" {
		return ""
	}
	return " (" + clause + ")"
}
