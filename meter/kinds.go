package meter

import (
	"fmt"
	"reflect"
	"strings"
)

// Kind names the algorithm of a Profile.
type Kind uint8

const (
	kindTokenBucket    Kind = iota // single rate, two colors
	kindSRTCM                      // RFC 2697
	kindTRTCM                      // RFC 2698
	kindTRTCM4115                  // RFC 4115, MEF 10.3
	kindGCRA                       // TokenBucket with GCRA set
	kindFixedWindow                // aligned windows
	kindSlidingWindow              // a window in slots
	kindSlidingCounter             // two counts
	kindSlidingLog                 // every packet
	kindTSWTCM                     // RFC 2859
)

// State is the sort of state of a kind of meter. It decides where a kind can run: the kernel plane
// supports buckets and counts only.
type State uint8

const (
	StateBuckets State = iota // one or two buckets: two 64-bit words and a time
	StateCounts               // counts of aligned windows: the same words
	StateLog                  // a log, whose size is a parameter
	StateAverage              // a moving average and a count of random numbers; no tokens
)

// String returns buckets, counts, log or average.
func (s State) String() string {
	if names := [...]string{"buckets", "counts", "log", "average"}; int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// KindInfo describes a kind of meter to programs that read or print parameters.
//
// Parameters are the fields of a struct such as SRTCM, named in lower case. Field and WithField
// access them by name. The Go type of a field is its unit: a Rate, a time.Duration, an int64 of
// bytes, an int of log entries, a flag, or a uint64 seed of random numbers.
type KindInfo struct {
	Name   string // in policies, such as srtcm or token-bucket
	Source string // definition, such as "RFC 2697 §3"; empty if there is none
	State  State
	Peak   bool // the second rate contains the first, as PIR does
	Beside bool // the second rate is in addition to the first, as EIR is

	Defaults Params   // the type, with the values of optional parameters
	Required []string // names of parameters without a default; do not modify
	Optional []string // names of all others; do not modify

	rule  string                   // prefix of clauses, if it is not Name
	texts [len(clauseColor)]string // clauses in words
}

// kinds is the one table of kinds. All that programs know of a kind besides its algorithm is here.
var kinds = [...]KindInfo{
	kindTokenBucket: {
		Name:     "token-bucket",
		Defaults: TokenBucket{}, Required: []string{"rate", "burst"}, Optional: []string{"warmup"},
		texts: twoColors("token bucket", "Tc >= B", "Tc < B"),
	},
	kindSRTCM: {
		Name: "srtcm", Source: "RFC 2697 §3", rule: "rfc2697",
		Defaults: SRTCM{}, Required: []string{"cir", "cbs", "ebs"},
		texts: excessTexts,
	},
	kindTRTCM: {
		Name: "trtcm", Source: "RFC 2698 §3", rule: "rfc2698", Peak: true,
		Defaults: TRTCM{}, Required: []string{"cir", "cbs", "pir", "pbs"},
		texts: [...]string{
			"input green, Tp >= B and Tc >= B: green, Tp -= B, Tc -= B",
			"input green, Tp >= B and Tc < B: yellow, Tp -= B",
			"Tp < B: red, nothing debited",
			"input yellow and Tp >= B: yellow, Tp -= B",
			"input red: red, nothing debited",
		},
	},
	kindTRTCM4115: {
		Name: "trtcm4115", Source: "RFC 4115 §3", rule: "rfc4115", Beside: true,
		Defaults: TRTCM4115{}, Required: []string{"cir", "cbs", "eir", "ebs"}, Optional: []string{"coupling"},
		texts: excessTexts,
	},
	kindGCRA: {
		Name:     "gcra", // ITU-T I.371, the token bucket by another name
		Defaults: TokenBucket{GCRA: true}, Required: []string{"rate", "burst"},
		texts: twoColors("GCRA", "B fits the bucket", "B does not fit the bucket"),
	},
	kindFixedWindow: {
		Name: "fixed-window", State: StateCounts,
		Defaults: FixedWindow{}, Required: []string{"limit", "window"},
		texts: twoColors("fixed window", "B fits the rest of the limit in this window",
			"B exceeds the rest of the limit in this window"),
	},
	kindSlidingWindow: {
		Name: "sliding-window", State: StateLog,
		Defaults: SlidingWindow{Slots: 10}, Required: []string{"limit", "window"},
		Optional: []string{"slots"},
		texts: twoColors("sliding window", "B fits the rest of the limit in the slots of the window",
			"B exceeds the rest of the limit in the slots of the window"),
	},
	kindSlidingCounter: {
		Name: "sliding-counter", State: StateCounts,
		Defaults: SlidingCounter{}, Required: []string{"limit", "window"},
		texts: twoColors("sliding window counter",
			"B fits the limit beside the counts of this window and the share of the one before",
			"B exceeds the limit beside the counts of this window and the share of the one before"),
	},
	kindSlidingLog: {
		Name: "sliding-log", State: StateLog,
		Defaults: SlidingLog{Entries: 65536}, Required: []string{"limit", "window"},
		Optional: []string{"entries"},
		texts: twoColors("sliding log", "B fits the rest of the limit in the window",
			"B exceeds the rest of the limit in the window, or no entry is free"),
	},
	kindTSWTCM: {
		Name: "tswtcm", Source: "RFC 2859 §4", State: StateAverage, Peak: true,
		Defaults: TSWTCM{}, Required: []string{"cir", "pir", "window"}, Optional: []string{"seed"},
		texts: [...]string{
			"the average is at most CIR, or the packet was not selected at random: green",
			"the average is above CIR, and the packet was selected at random: yellow",
			"the average is above PIR, and the packet was selected at random: red",
			"input yellow: yellow, not selected for red",
			"input red: red, not averaged",
		},
	},
}

// excessTexts are the clauses of a meter whose packets take from C or from E.
var excessTexts = [...]string{
	"input green and Tc >= B: green, Tc -= B",
	"input green, Tc < B and Te >= B: yellow, Te -= B",
	"no bucket that its color may use holds B: red, nothing debited",
	"input yellow and Te >= B: yellow, Te -= B",
	"input red: red, nothing debited",
}

// twoColors returns the clauses of a meter of two colors. Nothing turns yellow there.
func twoColors(name, fits, not string) [len(clauseColor)]string {
	return [...]string{
		name + ": " + fits + ": green, B is debited",
		"",
		name + ": " + not + ": red, nothing debited",
		name + ": input yellow and " + fits + ": yellow, B is debited",
		name + ": input red: red, nothing debited",
	}
}

// Kinds returns all kinds.
func Kinds() []Kind {
	all := make([]Kind, len(kinds))
	for k := range all {
		all[k] = Kind(k)
	}
	return all
}

// Info describes the kind. It panics if k is not one of Kinds.
func (k Kind) Info() KindInfo { return kinds[k] }

// String returns the name of the kind in policies.
func (k Kind) String() string {
	if int(k) < len(kinds) {
		return kinds[k].Name
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Params are the parameters of a meter: a plain struct such as SRTCM or
// FixedWindow.
type Params interface {
	Kind() Kind
	// Profile compiles the parameters. The error joins a FieldError for each
	// invalid parameter.
	Profile() (*Profile, error)
	// Buckets describes the buckets in the order of Meter.Tokens.
	Buckets() []Bucket
}

// Field returns a parameter by its name, in any case. It panics if p lacks it.
func Field(p Params, name string) any {
	return field(reflect.ValueOf(p), name).Interface()
}

// WithField returns p with one parameter changed. It panics if p lacks it, or if value is not of
// its type.
func WithField(p Params, name string, value any) Params {
	v := reflect.New(reflect.TypeOf(p)).Elem()
	v.Set(reflect.ValueOf(p))
	field(v, name).Set(reflect.ValueOf(value))
	return v.Interface().(Params)
}

func field(v reflect.Value, name string) reflect.Value {
	f := v.FieldByNameFunc(func(s string) bool { return strings.EqualFold(s, name) })
	if !f.IsValid() {
		panic(fmt.Sprintf("%v has no parameter %q", v.Type(), name))
	}
	return f
}
