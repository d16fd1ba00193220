package meter

import (
	"math/big"

	"github.com/a-seed-32e5a53f/shaper/meter/metertest"
)

// oracle is the model in exact rational arithmetic of a meter with the parameters of this package.
type oracle struct{ *metertest.Buckets }

func rational(r Rate) *big.Rat {
	if r.Bytes == 0 {
		return new(big.Rat)
	}
	return big.NewRat(r.Bytes, int64(r.Period))
}

func ratOf(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func newOracle(params any) *oracle {
	bucket := func(r Rate, burst int64) metertest.Bucket {
		return metertest.Bucket{Bytes: r.Bytes, Period: int64(r.Period), Burst: burst}
	}
	switch t := params.(type) {
	case SRTCM:
		return &oracle{
			metertest.New(metertest.EitherBucket, true, bucket(t.CIR, t.CBS), bucket(Rate{}, t.EBS)),
		}
	case TRTCM:
		return &oracle{
			metertest.New(metertest.BothBuckets, false, bucket(t.CIR, t.CBS), bucket(t.PIR, t.PBS)),
		}
	case TRTCM4115:
		return &oracle{
			metertest.New(metertest.EitherBucket, t.Coupling, bucket(t.CIR, t.CBS), bucket(t.EIR, t.EBS)),
		}
	case TokenBucket:
		return &oracle{metertest.New(metertest.OneBucket, false, bucket(t.Rate, t.Burst))}
	}
	panic("no model")
}

func (o *oracle) color(now int64, n int, in Color) Color {
	return Color(o.Color(now, int64(n), metertest.Color(in)))
}

func lesser(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return new(big.Rat).Set(a)
	}
	return new(big.Rat).Set(b)
}

func floorOf(r *big.Rat) int64 {
	return new(big.Int).Div(r.Num(), r.Denom()).Int64() // Euclidean, denominator positive
}

func (o *oracle) tokens() (tc, te int64) { return floorOf(o.Tokens[0]), floorOf(o.Tokens[1]) }
