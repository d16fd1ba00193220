package metertest

import (
	"math/big"
	"testing"
)

// TestBuckets checks hand-computed colors and tokens of each rule, with overflow and late times.
func TestBuckets(t *testing.T) {
	const g, y, r = Green, Yellow, Red
	type row struct {
		now, n   int64
		in, want Color
		c, e     string // tokens left
	}
	third := Bucket{Bytes: 1, Period: 3, Burst: 100}
	for _, test := range []struct {
		name  string
		model *Buckets
		rows  []row
	}{
		{"one bucket", New(OneBucket, false, third), []row{
			{5, 101, g, r, "100", "0"}, {5, 100, y, y, "0", "0"}, {6, 1, g, r, "1/3", "0"}, {8, 0, r, r, "1", "0"}, {7, 1, g, g, "0", "0"},
		}},
		{"RFC 2697", New(EitherBucket, true, third, Bucket{Burst: 50}), []row{
			{0, 60, g, g, "40", "50"},
			{0, 50, g, y, "40", "0"},
			{0, 1, y, r, "40", "0"},
			{183, 2, y, r, "100", "1"},
			{186, 1, r, r, "100", "2"},
			{186, 2, y, y, "100", "0"},
			{900, 0, r, r, "100", "50"},
		}},
		{"RFC 2698", New(BothBuckets, false, third, Bucket{Bytes: 2, Period: 3, Burst: 150}), []row{
			{0, 151, g, r, "100", "150"}, {0, 100, g, g, "0", "50"}, {0, 50, g, y, "0", "0"}, {3, 1, y, y, "1", "1"}, {3, 1, g, g, "0", "0"},
		}},
		{"RFC 4115", New(EitherBucket, false, third, Bucket{Bytes: 1, Period: 1, Burst: 50}), []row{
			{0, 50, y, y, "100", "0"}, {9, 5, y, y, "100", "4"}, {9, 100, g, g, "0", "4"},
		}},
		{"RFC 4115, coupled", New(EitherBucket, true, third, Bucket{Bytes: 1, Period: 1, Burst: 50}), []row{
			{0, 50, y, y, "100", "0"}, {9, 5, y, y, "100", "7"},
		}},
	} {
		model := test.model.Clone()
		for i, row := range test.rows {
			got := model.Color(row.now, row.n, row.in)
			c, e := model.Tokens[0].RatString(), model.Tokens[1].RatString()
			if got != row.want || c != row.c || e != row.e {
				t.Errorf("%s, row %d: got %d and %s, %s tokens, want %d and %s, %s", test.name, i, got, c, e,
					row.want, row.c, row.e)
			}
		}
		if test.model.Begun || test.model.Tokens[0].Cmp(big.NewRat(100, 1)) != 0 {
			t.Errorf("%s: got %v tokens in the original of a clone, want 100", test.name,
				test.model.Tokens[0])
		}
	}
}
