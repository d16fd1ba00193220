package compare

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// family lists every kind of meter at one rate, as one-liners. $rate is the rate, $window the
// window, $limit the bytes allowed by the rate in a window, and $burst a tenth of $limit. $entries
// is enough for a limit of small packets.
var family = []string{
	"token-bucket rate=$rate burst=$burst",
	"gcra rate=$rate burst=$burst",
	"srtcm cir=$rate cbs=$burst ebs=$burst",
	"fixed-window limit=$limit window=$window",
	"sliding-window limit=$limit window=$window",
	"sliding-counter limit=$limit window=$window",
	"sliding-log limit=$limit window=$window entries=$entries",
	"tswtcm cir=$rate pir=$rate window=$window",
	"token-bucket rate=$rate burst=$burst warmup=$window",
}

const (
	burstShare  = 10      // a burst is 1/10 of a window
	smallPacket = 40      // size of a TCP acknowledgement without options, bytes
	mostEntries = 1 << 20 // maximum entries of a log
)

// familyAt returns the one-liners of the family for a rate. rateText is the rate as the
// user spelled it.
func familyAt(rate meter.Rate, rateText string, window time.Duration) ([]string, error) {
	windowText := spanText(window)
	limit, _ := rate.Burst(window)
	burst, _ := rate.Burst(window / burstShare)
	if burst == 0 {
		return nil,
			fmt.Errorf("--rate %s allows %d bytes in a tenth of --window %s, the burst of the meters: give a longer window, or each --meter",
				rateText, burst, windowText)
	}
	words := strings.NewReplacer("$rate", rateText, "$window", windowText, "$limit", sizeText(limit),
		"$burst", sizeText(burst),
		"$entries", fmt.Sprint(min(limit/smallPacket+1, mostEntries)))
	specs := make([]string, len(family))
	for i, f := range family {
		specs[i] = words.Replace(f)
	}
	return specs, nil
}

// sizeText and spanText write bytes and a time in the syntax of policies.

func sizeText(n int64) string { return exactText(n, "B", "kB", "MB", "GB") }

func spanText(d time.Duration) string { return policyfile.FormatDuration(d, time.Second) }

// exactText writes n in the largest exact unit. Each unit is 1000 times the one before it.
func exactText(n int64, units ...string) string {
	for len(units) > 1 && n%1000 == 0 {
		n, units = n/1000, units[1:]
	}
	return fmt.Sprintf("%d%s", n, units[0])
}

// compared is one meter of a comparison. Its policy is its own.
type compared struct {
	spec     string // one-liner
	pipeline *pipeline.Pipeline
	name     string // type, with a number if several meters have it
	params   string // rest of the one-liner
	state    int    // memory of the meter, bytes
}

// compareMeters compiles one-liners.
func compareMeters(specs []string, length string) ([]compared, error) {
	meters := make([]compared, len(specs))
	types := map[string]int{}
	for i, spec := range specs {
		plan, err := compileOne(policyfile.OneLiner{Meter: spec, Length: length})
		if err != nil {
			// There are several meters: name this one on every line.
			return nil, errors.New(
				strings.ReplaceAll(err.Error(), "--meter:", fmt.Sprintf("--meter %q:", spec)))
		}
		m := compared{spec: spec, pipeline: pipeline.FromPlan(plan), state: plan.Stages[0].Profile.Memory()}
		m.name, m.params = nameOf(spec)
		types[m.name]++
		meters[i] = m
	}
	number := map[string]int{}
	for i := range meters {
		m := &meters[i]
		if kind := m.name; types[kind] > 1 {
			number[kind]++
			m.name = fmt.Sprintf("%s-%d", kind, number[kind])
		}
	}
	return meters, nil
}

func compileOne(one policyfile.OneLiner) (*compiled.Plan, error) {
	file, err := one.Load()
	if err != nil {
		return nil, err
	}
	return file.Compile()
}

// nameOf splits a compiled one-liner into its type and the rest. The name of a meter with a warm-up
// says so, because it behaves differently.
func nameOf(spec string) (name, params string) {
	var rest []string
	warm := ""
	for i, w := range strings.FieldsFunc(spec, func(r rune) bool { return strings.ContainsRune(" ,\t", r) }) {
		kind, typed := strings.CutPrefix(w, "type=")
		if typed || i == 0 && !strings.Contains(w, "=") {
			name = kind
			continue
		}
		if strings.HasPrefix(w, "warmup=") {
			warm = "+warmup"
		}
		rest = append(rest, w)
	}
	return name + warm, strings.Join(rest, " ")
}
