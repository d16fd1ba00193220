package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// report collects the results of all packages.
type report struct {
	w        io.Writer
	begin    time.Time
	printed  time.Time           // time of the latest line
	packages map[string]*pkg     // running packages, by path
	builds   map[string][]string // output of the compiler, by import path
	failures []string            // output of failed tests and packages
	skips    map[string][]string // names of skipped tests, by reason

	passed, failed, skipped int // tests without subtests
}

// pkg is a package whose tests run.
type pkg struct {
	tests  map[string]*test // by name; "" is the package
	begins []string         // names of tests in order of their start
}

type test struct {
	result string // "pass", "fail" or "skip"; "": running
	output []string
}

func newReport(w io.Writer) *report {
	now := time.Now()
	return &report{
		w: w, begin: now, printed: now,
		packages: map[string]*pkg{}, builds: map[string][]string{}, skips: map[string][]string{},
	}
}

func (r *report) printf(format string, args ...any) {
	fmt.Fprintf(r.w, format+"\n", args...)
	r.printed = time.Now()
}

// add adds an event.
func (r *report) add(e event) {
	switch e.Action {
	case "build-output":
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
		return
	case "build-fail":
		r.failures = append(r.failures,
			"FAIL "+e.ImportPath+" [build failed]\n"+strings.Join(r.builds[e.ImportPath], ""))
		return
	}
	if e.Package == "" {
		r.printf("%s", strings.TrimSuffix(e.Output, "\n"))
		return
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &pkg{tests: map[string]*test{"": {}}}
		r.packages[e.Package] = p
	}
	t := p.tests[e.Test]
	if t == nil {
		t = &test{}
		p.tests[e.Test] = t
		p.begins = append(p.begins, e.Test)
	}
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
	case "pass", "fail", "skip":
		if t.result = e.Action; e.Action == "pass" && e.Test != "" {
			t.output = nil
		}
		if e.Test == "" {
			r.end(e.Package, p, e.Elapsed)
		}
	}
}

var (
	skipReason = regexp.MustCompile(`^\s*\S+\.go:\d+: (.*)`)
	noise      = regexp.MustCompile(`^=== (RUN|PAUSE|CONT|NAME) `)
)

// end counts and prints an ended package.
func (r *report) end(path string, p *pkg, seconds float64) {
	delete(r.packages, path)
	bad := p.tests[""].result == "fail"
	parents := map[string]string{} // tests with subtests, and the worst result of those
	passed, failed, skipped := r.passed, r.failed, r.skipped
	for _, name := range slices.Backward(p.begins) { // subtests first
		t := p.tests[name]
		if t.result == "" { // the package panicked or ran out of time
			t.result = "fail"
		}
		sub, hasSub := parents[name]
		if i := strings.LastIndexByte(name, '/'); i >= 0 &&
			(t.result == "fail" || parents[name[:i]] != "fail") {
			parents[name[:i]] = t.result
		}
		switch {
		case t.result == "fail":
			r.failures = append(r.failures, fmt.Sprintf("FAIL %s %s\n%s", path, name, text(t.output)))
			if sub != "fail" {
				r.failed++
			}
		case hasSub: // its subtests are counted
		case t.result == "skip":
			r.skipped++
			reason := "no reason"
			for _, line := range t.output {
				if m := skipReason.FindStringSubmatch(line); m != nil {
					reason = m[1]
				}
			}
			r.skips[reason] = append(r.skips[reason], name)
		default:
			r.passed++
		}
	}
	if bad && r.failed == failed {
		r.failed++
		r.failures = append(r.failures, "FAIL "+path+"\n"+text(p.tests[""].output))
	}
	if len(p.begins) == 0 && !bad {
		return // no tests
	}
	line := fmt.Sprintf("%-4s %s %.1fs: %d passed", map[bool]string{false: "ok", true: "FAIL"}[bad], path,
		seconds, r.passed-passed)
	if n := r.failed - failed; n > 0 {
		line += fmt.Sprintf(", %d failed", n)
	}
	if n := r.skipped - skipped; n > 0 {
		line += fmt.Sprintf(", %d skipped", n)
	}
	r.printf("%s", line)
}

// text returns output without the lines naming the running test.
func text(output []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(output), noise.MatchString), "")
}

// beat prints what is running.
func (r *report) beat() {
	var running []string
	for _, path := range slices.Sorted(maps.Keys(r.packages)) {
		p := r.packages[path]
		var tests []string
		for _, name := range p.begins {
			if p.tests[name].result == "" && !strings.Contains(name, "/") {
				tests = append(tests, name)
			}
		}
		line := path[strings.LastIndexByte(path, '/')+1:]
		if len(tests) > 0 {
			line += " " + tests[0]
		}
		if n := len(tests) - 1; n > 0 {
			line += fmt.Sprintf(" and %d others", n)
		}
		running = append(running, line)
	}
	what := "building"
	if running != nil {
		what = "running " + strings.Join(running, ", ")
	}
	r.printf("     %.0fs: %s", time.Since(r.begin).Seconds(), what)
}

// finish prints the failures, the skipped tests and the sums, and returns the last line. failed is
// set if go test failed.
func (r *report) finish(failed bool) string {
	for path, p := range r.packages { // go test itself was killed
		p.tests[""].result = "fail"
		r.end(path, p, 0)
	}
	if failed && r.failed == 0 {
		r.failed = max(1, len(r.failures))
	}
	for _, f := range r.failures {
		r.printf("\n%s", strings.TrimRight(f, "\n"))
	}
	reasons := slices.SortedFunc(maps.Keys(r.skips), func(a, b string) int {
		return cmp.Or(len(r.skips[b])-len(r.skips[a]), cmp.Compare(a, b))
	})
	for _, reason := range reasons {
		names := r.skips[reason]
		r.printf("skipped %d: %s (%.60s%s)", len(names), reason, names[0],
			map[bool]string{true: ", ..."}[len(names) > 1])
	}
	line := fmt.Sprintf("%d passed, %d failed, %d skipped", r.passed, r.failed, r.skipped)
	r.printf("%s", line)
	return line
}
