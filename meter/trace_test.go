package meter

import (
	"testing"
)

// TestTrace has rows worked out by hand from the text of the RFCs, at every bound and one
// byte to either side of it. 8 Mbit/s is one byte per microsecond.
func TestTrace(t *testing.T) {
	const µs = 1000
	mega := BitRate(8e6)
	type row struct {
		at     int64 // ns
		n      int
		in     Color
		want   Color
		tc, te int64 // tokens after the packet; te is Tp for trTCM
	}
	for _, test := range []struct {
		name   string
		params compiler
		rows   []row
	}{
		{"srTCM: equal conforms, one more does not", SRTCM{CIR: mega, CBS: 100, EBS: 50}, []row{
			{0, 101, Green, Red, 100, 50},
			{0, 100, Green, Green, 0, 50},
			{0, 51, Green, Red, 0, 50},
			{0, 50, Green, Yellow, 0, 0},
			{0, 1, Green, Red, 0, 0},
			{0, 0, Green, Green, 0, 0},
		}},
		{"srTCM: green does not debit E, C is filled before E", SRTCM{CIR: mega, CBS: 100, EBS: 50}, []row{
			{0, 60, Green, Green, 40, 50},
			{0, 50, Green, Yellow, 40, 0},
			{59 * µs, 99, Yellow, Red, 99, 0},
			{60 * µs, 1, Yellow, Red, 100, 0},
			{61 * µs, 2, Yellow, Red, 100, 1},
			{61 * µs, 1, Yellow, Yellow, 100, 0},
			{111 * µs, 100, Green, Green, 0, 50},
		}},
		{"srTCM: overflow counts once, whatever the verdict in between", SRTCM{CIR: mega, CBS: 100, EBS: 50}, []row{
			{0, 50, Yellow, Yellow, 100, 0},
			{10 * µs, 200, Green, Red, 100, 10},
			{10 * µs, 200, Green, Red, 100, 10},
			{20 * µs, 5, Yellow, Yellow, 100, 15},
			{20 * µs, 5, Red, Red, 100, 15},
			{55 * µs, 50, Yellow, Yellow, 100, 0},
		}},
		{"srTCM: yellow never takes from C, red takes nothing", SRTCM{CIR: mega, CBS: 100, EBS: 50}, []row{
			{0, 51, Yellow, Red, 100, 50},
			{0, 50, Yellow, Yellow, 100, 0},
			{0, 10, Red, Red, 100, 0},
			{0, 0, Red, Red, 100, 0},
		}},
		{"srTCM: CBS zero", SRTCM{CIR: mega, CBS: 0, EBS: 50}, []row{
			{0, 50, Green, Yellow, 0, 0},
			{10 * µs, 11, Green, Red, 0, 10},
			{10 * µs, 10, Green, Yellow, 0, 0},
		}},
		{"srTCM: EBS zero", SRTCM{CIR: mega, CBS: 100, EBS: 0}, []row{
			{0, 100, Green, Green, 0, 0},
			{500 * µs, 1, Yellow, Red, 100, 0},
		}},
		{"trTCM: green debits both", TRTCM{CIR: mega, CBS: 100, PIR: BitRate(16e6), PBS: 150}, []row{
			{0, 151, Green, Red, 100, 150},
			{0, 100, Green, Green, 0, 50},
			{0, 51, Green, Red, 0, 50},
			{0, 50, Green, Yellow, 0, 0},
			{10 * µs, 21, Green, Red, 10, 20},
			{10 * µs, 11, Green, Yellow, 10, 9},
			{10 * µs, 10, Green, Red, 10, 9},
			{11 * µs, 11, Green, Green, 0, 0},
		}},
		{"trTCM: yellow spends only P, red nothing", TRTCM{CIR: mega, CBS: 100, PIR: mega, PBS: 100}, []row{
			{0, 100, Red, Red, 100, 100},
			{0, 100, Yellow, Yellow, 100, 0},
			{0, 1, Yellow, Red, 100, 0},
			{50 * µs, 51, Green, Red, 100, 50},
			{50 * µs, 50, Green, Green, 50, 0},
		}},
		{"RFC 4115: C does not need E, equal conforms", TRTCM4115{CIR: mega, CBS: 100, EIR: BitRate(16e6), EBS: 50}, []row{
			{0, 50, Yellow, Yellow, 100, 0},
			{0, 100, Green, Green, 0, 0},
			{10 * µs, 10, Green, Green, 0, 20},
			{10 * µs, 20, Green, Yellow, 0, 0},
			{1000 * µs, 10, Red, Red, 100, 50},
		}},
		{"RFC 4115: a rate of zero never refills", TRTCM4115{CIR: Rate{}, CBS: 100, EIR: mega, EBS: 50}, []row{
			{0, 100, Green, Green, 0, 50},
			{1e18, 1, Green, Yellow, 0, 49},
		}},
		{"MEF 10.3: without coupling C's overflow is lost", TRTCM4115{CIR: mega, CBS: 100, EIR: Rate{}, EBS: 50}, []row{
			{0, 50, Yellow, Yellow, 100, 0},
			{90 * µs, 1, Yellow, Red, 100, 0},
		}},
		{"MEF 10.3: coupling adds C's overflow to E's own rate", TRTCM4115{CIR: mega, CBS: 100, EIR: mega, EBS: 50, Coupling: true}, []row{
			{0, 50, Yellow, Yellow, 100, 0},
			{0, 10, Green, Green, 90, 0},
			{20 * µs, 31, Yellow, Red, 100, 30},
			{20 * µs, 30, Yellow, Yellow, 100, 0},
		}},
		{"token bucket", TokenBucket{Rate: mega, Burst: 100}, []row{
			{0, 101, Green, Red, 100, 0},
			{0, 0, Yellow, Yellow, 100, 0},
			{0, 60, Green, Green, 40, 0},
			{0, 10, Yellow, Yellow, 30, 0},
			{0, 10, Red, Red, 30, 0},
			{0, 31, Green, Red, 30, 0},
			{1 * µs, 31, Green, Green, 0, 0},
			{1*µs + 999, 1, Green, Red, 0, 0},
			{2 * µs, 1, Green, Green, 0, 0},
		}},
		{"a clock that steps back refills nothing and loses nothing", TRTCM{CIR: mega, CBS: 100, PIR: mega, PBS: 100}, []row{
			{1000 * µs, 100, Green, Green, 0, 0},
			{0, 1, Green, Red, 0, 0},
			{999 * µs, 1, Green, Red, 0, 0},
			{1010 * µs, 11, Green, Red, 10, 10},
			{1010 * µs, 10, Green, Green, 0, 0},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := New(compileProfile(t, test.params))
			for i, r := range test.rows {
				got := m.Color(r.at, r.n, r.in)
				tc, te := m.Tokens(r.at)
				if got != r.want || tc != r.tc || te != r.te {
					t.Fatalf("row %d: %d B at %d, input %v: %v with %d, %d left; want %v with %d, %d",
						i, r.n, r.at, r.in, got, tc, te, r.want, r.tc, r.te)
				}
			}
		})
	}
}
