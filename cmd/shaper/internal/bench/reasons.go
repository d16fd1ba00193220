package main

import "regexp"

// reasons says why figures miss their bar or aim. The first pattern that matches the name of a
// figure counts.
var reasons = []struct {
	figures *regexp.Regexp
	reason  string
}{
	{regexp.MustCompile(`^throttled.*without a bound`), "it keeps no order of use, as a table with a bound must"},
	{regexp.MustCompile(`^kernel: shaper run, 1 class$`), "the verifier takes 33 ms, the grace period of RCU at the attachment 6 to 17 ms, parsing the object 5 ms, and two starts of the process 9 ms, because exec drops capabilities"},
	{regexp.MustCompile(`^kernel: shaper reload, 1 class$`), "the verifier takes 33 ms, parsing the object 5 ms, and the start of the process 4 ms"},
	{regexp.MustCompile(`^TAP to TAP: 64 B UDP.*packets/s$`), "shaper forwards all that the sender can send on the other core: 1.9 µs per packet, against 2.9 of the loop"},
	{regexp.MustCompile(`^TAP to TAP: 64 B UDP.*CPU time`), "each packet takes a read, 0.7 µs; io_uring would take 0.55. The writer also pays for the receiver's protocol stack"},
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
