package engine

import (
	"errors"
	"math"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// The words of a state count halves of a profile's units: the lowest bit closes a word.
// See bpf/src/bucket.h.
const (
	Halves   = 2
	maxReach = 1 << 61 // halves refilled within the horizon: words, modulo 2^64, stay unambiguous
	Fills    = 1 << 62 // halves filling any bucket
)

// ProfileOf encodes the parameters of a stage's meter. The error comes from EncodeMeter.
func ProfileOf(s *compiled.Stage) (bpf.ShaperProfile, error) {
	return EncodeMeter(s.Profile, s.Kind, s.Source)
}

// EncodeMeter encodes the parameters of a meter, which is defined by a part of the policy.
// The error is a dataplane.FieldError, or wraps one.
func EncodeMeter(profile *meter.Profile, kind meter.Kind, source any) (bpf.ShaperProfile, error) {
	if name := unsaidParameter(profile.Params()); name != "" {
		err := &dataplane.FieldError{Object: source, Field: name, Reason: "cannot run in the kernel"}
		return bpf.ShaperProfile{}, &remedy.Error{Err: err, Remedy: remedy.UseUserSpace}
	}
	numbers, err := profile.Integers()
	var fault *meter.FieldError
	if errors.As(err, &fault) {
		reason := fault.Reason
		switch fault.Field {
		case "type":
			reason = kind.String() + " cannot run in the kernel"
		case "Warmup":
			reason = "cannot run in the kernel"
		}
		err = &remedy.Error{
			Err: &dataplane.FieldError{
				Object: source, Field: strings.ToLower(fault.Field), Reason: reason,
			},
			Remedy: remedy.UseUserSpace,
		}
	}
	return EncodeProfile(numbers), err
}

func EncodeProfile(p meter.Integers) bpf.ShaperProfile {
	if p.Window > 0 { // windows count bytes, not halves of units
		s := bpf.ShaperProfile{Window: uint64(p.Window), Sliding: Flag(p.Sliding), Limit: uint8(p.Limit)}
		s.Buckets[0].Den, s.Buckets[0].Size, s.Buckets[1].Den = 1, p.Burst[0], 1
		return s
	}
	s := bpf.ShaperProfile{
		Horizon: uint64(maxReach / (Halves * max(p.Num[0], p.Num[1], 1))),
		Excess:  Flag(p.Excess),
		Coupled: Flag(p.Coupled),
		Peak:    Flag(p.Peak),
		Limit:   uint8(p.Limit),
	}
	for i := range s.Buckets {
		b := &s.Buckets[i]
		b.Num = uint64(Halves * p.Num[i])
		b.Den = uint64(Halves * p.Den[i])
		b.Size = Halves * p.Den[i] * p.Burst[i]
		b.Over = uint64(p.Burst[i]) + 1
		b.Full = math.MaxUint64
		if b.Num > 0 {
			b.Full = (Fills + b.Num - 1) / b.Num
		}
	}
	return s
}

// Flag returns 1 for true and 0 for false, as the programs read booleans.
func Flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// BlockingProfile returns the profile of a meter passing nothing.
func BlockingProfile() *bpf.ShaperProfile {
	return &bpf.ShaperProfile{Buckets: [2]bpf.ShaperBucket{{Den: 1}, {Den: 1}}}
}

// unsaidParameter returns the name of a parameter that is set but unknown to the programs, or "". For
// kinds not listed here it returns "": meter.Profile.Integers refuses them.
func unsaidParameter(p meter.Params) string {
	var known []string
	switch p.(type) {
	case meter.TokenBucket:
		known = []string{"Rate", "Burst", "Warmup", "GCRA"}
	case meter.SRTCM:
		known = []string{"CIR", "CBS", "EBS"}
	case meter.TRTCM:
		known = []string{"CIR", "CBS", "PIR", "PBS"}
	case meter.TRTCM4115:
		known = []string{"CIR", "CBS", "EIR", "EBS", "Coupling"}
	case meter.FixedWindow, meter.SlidingCounter:
		known = []string{"Limit", "Window"}
	default:
		return ""
	}
	for _, name := range unsaid.Fields(p, known...) {
		return strings.ToLower(name)
	}
	return ""
}
