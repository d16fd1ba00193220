package meter

import "time"

// Bucket describes one bucket of a meter, with the names that its RFC uses.
type Bucket struct {
	RateName   string // CIR, PIR, EIR or rate
	BurstName  string // CBS, PBS, EBS, burst or limit
	TokensName string // Tc, Tp, Te or, for windows, "left"
	Rate       Rate
	Burst      int64 // the most tokens that the bucket can hold, in bytes
}

// Buckets returns the buckets in the order of Meter.Tokens: C and E.
func (t SRTCM) Buckets() []Bucket {
	return []Bucket{{"CIR", "CBS", "Tc", t.CIR, t.CBS}, {"CIR", "EBS", "Te", t.CIR, t.EBS}}
}

// Buckets returns the buckets in the order of Meter.Tokens: C and P.
func (t TRTCM) Buckets() []Bucket {
	return []Bucket{{"CIR", "CBS", "Tc", t.CIR, t.CBS}, {"PIR", "PBS", "Tp", t.PIR, t.PBS}}
}

// Buckets returns the buckets in the order of Meter.Tokens: C and E.
func (t TRTCM4115) Buckets() []Bucket {
	return []Bucket{{"CIR", "CBS", "Tc", t.CIR, t.CBS}, {"EIR", "EBS", "Te", t.EIR, t.EBS}}
}

// Buckets returns the one bucket.
func (t TokenBucket) Buckets() []Bucket {
	return []Bucket{{"rate", "burst", "Tc", t.Rate, t.Burst}}
}

// Buckets returns the window as one bucket. Its tokens are the unused part of
// the limit.
func (t FixedWindow) Buckets() []Bucket { return windowBuckets(t.Limit, t.Window) }

// Buckets returns the window as one bucket. Its tokens are the unused part of
// the limit.
func (t SlidingWindow) Buckets() []Bucket { return windowBuckets(t.Limit, t.Window) }

// Buckets returns the window as one bucket. Its tokens are the unused part of
// the limit.
func (t SlidingCounter) Buckets() []Bucket { return windowBuckets(t.Limit, t.Window) }

// Buckets returns the window as one bucket. Its tokens are the unused part of
// the limit.
func (t SlidingLog) Buckets() []Bucket { return windowBuckets(t.Limit, t.Window) }

func windowBuckets(limit int64, window time.Duration) []Bucket {
	return []Bucket{{"rate", "limit", "left", Rate{Bytes: limit, Period: window}, limit}}
}

// Buckets returns a bucket for each target rate. Its burst is the number of bytes
// that the rate brings in one Window; its tokens are how far the average is
// below the rate.
func (t TSWTCM) Buckets() []Bucket {
	return []Bucket{targetBucket("CIR", t.CIR, t.Window), targetBucket("PIR", t.PIR, t.Window)}
}

func targetBucket(name string, r Rate, window time.Duration) Bucket {
	burst, _ := r.Burst(window)
	return Bucket{name, name, "below " + name, r, burst}
}
