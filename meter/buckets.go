package meter

import "time"

// Bucket describes one bucket of a meter, by the names of its RFC.
type Bucket struct {
	RateName   string // CIR, PIR, EIR or rate
	BurstName  string // CBS, PBS, EBS, burst or limit
	TokensName string // Tc, Tp, Te or, for windows, "left"
	Rate       Rate
	Burst      int64 // the most tokens in the bucket, bytes
}

// windowBuckets describes a window as one bucket. Its tokens are the unused part of
// the limit.
func windowBuckets(limit int64, window time.Duration) []Bucket {
	return []Bucket{{"rate", "limit", "left", Rate{Bytes: limit, Period: window}, limit}}
}
