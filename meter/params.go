package meter

import "time"

// SRTCM is the single-rate three-color marker of RFC 2697. Bucket C refills at CIR; the tokens
// overflowing it go into bucket E. CBS and EBS are in bytes; one of them may be zero.
type SRTCM struct {
	CIR      Rate
	CBS, EBS int64
}

// Kind returns the kind srtcm.
func (SRTCM) Kind() Kind { return kindSRTCM }

// Buckets describes C and E.
func (t SRTCM) Buckets() []Bucket {
	return []Bucket{{"CIR", "CBS", "Tc", t.CIR, t.CBS}, {"CIR", "EBS", "Te", t.CIR, t.EBS}}
}

// Profile compiles the parameters. The error joins a FieldError for each invalid one.
func (t SRTCM) Profile() (*Profile, error) {
	var f fieldErrors
	f.rate("CIR", t.CIR, "RFC 2697 §2")
	f.bytes("CBS", t.CBS)
	f.bytes("EBS", t.EBS)
	if t.CBS == 0 && t.EBS == 0 {
		f.add("CBS", "and EBS are both zero: one of them must be larger (RFC 2697 §2)")
	}
	// RFC 2697 is RFC 4115 with coupling and an excess rate of zero.
	return f.profile(t, bucketParams{"CBS", t.CIR, t.CBS}, bucketParams{"EBS", Rate{}, t.EBS}, true)
}

// TRTCM is the two-rate three-color marker of RFC 2698. CBS and PBS are in bytes and
// above zero. PIR is at least CIR.
type TRTCM struct {
	CIR Rate
	CBS int64
	PIR Rate
	PBS int64
}

// Kind returns the kind trtcm.
func (TRTCM) Kind() Kind { return kindTRTCM }

// Buckets describes C and P.
func (t TRTCM) Buckets() []Bucket {
	return []Bucket{{"CIR", "CBS", "Tc", t.CIR, t.CBS}, {"PIR", "PBS", "Tp", t.PIR, t.PBS}}
}

// Profile compiles the parameters. The error joins a FieldError for each invalid one.
func (t TRTCM) Profile() (*Profile, error) {
	var f fieldErrors
	f.rates(t.CIR, t.PIR, "RFC 2698 §2")
	f.positive("CBS", t.CBS, "RFC 2698 §2")
	f.positive("PBS", t.PBS, "RFC 2698 §2")
	return f.profile(t, bucketParams{"CBS", t.CIR, t.CBS}, bucketParams{"PBS", t.PIR, t.PBS}, false)
}

// TRTCM4115 is the two-rate three-color marker of RFC 4115. CBS and EBS are in bytes;
// one of them may be zero. A rate of zero never refills its bucket.
type TRTCM4115 struct {
	CIR Rate
	CBS int64
	EIR Rate
	EBS int64
	// Coupling is the coupling flag of MEF 10.3: tokens overflowing C go into E.
	Coupling bool
}

// Kind returns the kind trtcm4115.
func (TRTCM4115) Kind() Kind { return kindTRTCM4115 }

// Buckets describes C and E.
func (t TRTCM4115) Buckets() []Bucket {
	return []Bucket{{"CIR", "CBS", "Tc", t.CIR, t.CBS}, {"EIR", "EBS", "Te", t.EIR, t.EBS}}
}

// Profile compiles the parameters. The error joins a FieldError for each invalid one.
func (t TRTCM4115) Profile() (*Profile, error) {
	var f fieldErrors
	f.optionalRate("CIR", t.CIR)
	f.optionalRate("EIR", t.EIR)
	f.bytes("CBS", t.CBS)
	f.bytes("EBS", t.EBS)
	if t.CBS == 0 && t.EBS == 0 {
		f.add("CBS", "and EBS are both zero: every packet would be red")
	}
	return f.profile(t, bucketParams{"CBS", t.CIR, t.CBS}, bucketParams{"EBS", t.EIR, t.EBS}, t.Coupling)
}

// TokenBucket is a single-rate two-color meter. A conforming packet keeps its input color; any
// other is red. Burst is in bytes.
//
// The generic cell rate algorithm (GCRA, ITU-T I.371), the leaky bucket as a meter, is
// a token bucket: Burst is its limit plus one increment, Meter.Tokens is what its users
// call remaining, and RetryAfter and ResetAfter are retry_after and reset_after.
type TokenBucket struct {
	Rate  Rate
	Burst int64
	// Warmup makes the rate climb from a third to full within this time after a
	// pause as long, in 100 steps, as in Guava's SmoothWarmingUp with a cold factor of
	// 3. After the pause the bucket holds a third of Burst. Zero is no warm-up;
	// otherwise it is from 1 µs to 24 h.
	Warmup time.Duration
	// GCRA changes the name of the meter and of its clauses to "gcra", not its colors.
	// It does not go with Warmup.
	GCRA bool
}

// Kind returns the kind token-bucket, or gcra if GCRA is set.
func (t TokenBucket) Kind() Kind {
	if t.GCRA {
		return kindGCRA
	}
	return kindTokenBucket
}

// Buckets describes the one bucket.
func (t TokenBucket) Buckets() []Bucket {
	return []Bucket{{"rate", "burst", "Tc", t.Rate, t.Burst}}
}

// Profile compiles the parameters. The error joins a FieldError for each invalid one.
func (t TokenBucket) Profile() (*Profile, error) {
	var f fieldErrors
	if t.Warmup != 0 {
		f.span("Warmup", t.Warmup, maxWarmup)
	}
	if t.Warmup != 0 && t.GCRA {
		f.add("Warmup", "does not go with GCRA")
	}
	f.rate("Rate", t.Rate, "")
	f.positive("Burst", t.Burst, "")
	p, err := f.profile(t, bucketParams{"Burst", t.Rate, t.Burst}, bucketParams{}, false)
	if err != nil || t.Warmup == 0 {
		return p, err
	}
	return p.warmUp(t.Warmup)
}
