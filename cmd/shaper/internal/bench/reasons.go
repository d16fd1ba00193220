package main

import "regexp"

// reasons says why figures miss their bar or aim. The first pattern that matches the name of a
// figure counts.
var reasons = []struct {
	figures *regexp.Regexp
	reason  string
}{
	{regexp.MustCompile(`^throttled.*without a bound`), "it keeps no order of use, as a table with a bound must"},
}

// reasonOf returns the reason for a figure, or "".
func reasonOf(what string) string {
	for _, r := range reasons {
		if r.figures.MatchString(what) {
			return r.reason
		}
	}
	return ""
}
