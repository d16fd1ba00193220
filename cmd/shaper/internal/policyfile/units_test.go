package policyfile

import (
	"math"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func TestParseRate(t *testing.T) {
	for text, want := range map[string]meter.Rate{
		"0bit":                   {},
		"1bit":                   {Bytes: 1, Period: 8 * time.Second},
		"8bit":                   meter.ByteRate(1),
		"10mbit":                 meter.BitRate(10e6),
		"1.5mbit":                meter.BitRate(1.5e6),
		"0.1bit":                 {Bytes: 1, Period: 80 * time.Second},
		"1.000000001gbit":        meter.BitRate(1_000_000_001),
		"33kbit":                 meter.BitRate(33e3),
		"400gbit":                meter.BitRate(400e9),
		"1.6tbit":                meter.BitRate(1.6e12),
		"1B/s":                   meter.ByteRate(1),
		"1.25MB/s":               meter.BitRate(10e6),
		"10kB/s":                 meter.ByteRate(10e3),
		"1GB/s":                  meter.ByteRate(1e9),
		"10kB/1min":              {Bytes: 10e3, Period: time.Minute},
		"10kB/min":               {Bytes: 10e3, Period: time.Minute},
		"1KiB/10s":               {Bytes: 1024, Period: 10 * time.Second},
		"1B/8s":                  meter.BitRate(1),
		"1B/1d":                  {Bytes: 1, Period: 24 * time.Hour},
		"7B/3ns":                 {Bytes: 7, Period: 3},
		"50Mbit":                 meter.BitRate(50e6),
		"50 mbit":                meter.BitRate(50e6),
		"50Mbit/s":               meter.BitRate(50e6),
		"50 Mbit/s":              meter.BitRate(50e6),
		"50 mbit/s":              meter.BitRate(50e6),
		"33 Kbit":                meter.BitRate(33e3),
		"33 kbit/s":              meter.BitRate(33e3),
		"1.6 Tbit/s":             meter.BitRate(1.6e12),
		"2Gbit":                  meter.BitRate(2e9),
		"8 bit/s":                meter.ByteRate(1),
		"1.25 MB/s":              meter.BitRate(10e6),
		"10 kB/1 min":            {Bytes: 10e3, Period: time.Minute},
		"999999999999999999mbit": {Bytes: 999999999999999999, Period: 8000},
	} {
		got, err := ParseRate(text)
		if err != nil || got.Period <= 0 || got.Cmp(positivePeriod(want)) != 0 {
			t.Errorf("%s: got %v (%d bytes in %v), want %v: %v", text, got, got.Bytes, got.Period, want, err)
		}
	}
}

// TestPeriods checks times behind a slash that are no times.
func TestPeriods(t *testing.T) {
	for _, period := range []string{".5s", ".s", "+1s", "-1s", "x1s", "1s2", ",5s", "s1", "ss", " s"} {
		if r, err := ParseRate("1MB/" + period); err == nil {
			t.Errorf("1MB/%s: got %v, want an error", period, r)
		}
		if r, err := ParsePacketRate("1p/" + period); err == nil {
			t.Errorf("1p/%s: got %v, want an error", period, r)
		}
	}
}

// positivePeriod makes the zero rate comparable.
func positivePeriod(r meter.Rate) meter.Rate {
	if r.Period == 0 {
		r.Period = 1
	}
	return r
}

func TestParsePacketRate(t *testing.T) {
	for text, want := range map[string]meter.Rate{
		"100p/1s":  {Bytes: 100, Period: time.Second},
		"100p/s":   {Bytes: 100, Period: time.Second},
		"0.5p/1s":  {Bytes: 1, Period: 2 * time.Second},
		"100 p/s":  {Bytes: 100, Period: time.Second},
		"7p/10min": {Bytes: 7, Period: 10 * time.Minute},
	} {
		if got, err := ParsePacketRate(text); err != nil || got.Cmp(want) != 0 {
			t.Errorf("%s: got %v, want %v: %v", text, got, want, err)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1500": 1500, "1B": 1, "64kB": 64e3, "64KiB": 65536, "1.5KiB": 1536, "2MB": 2e6, "2MiB": 2 << 20,
		"1GB": 1e9, "1GiB": 1 << 30, "0.001kB": 1, "0.5KiB": 512, "999999999999999999": 999999999999999999,
		"64 KiB": 65536, "1.5 KiB": 1536, "10 kB": 10e3, "1 B": 1,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%s: got %d, want %d: %v", text, got, want, err)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0ns": 0, "1ns": 1, "20us": 20 * time.Microsecond, "20µs": 20 * time.Microsecond, "20ms": 20 * time.Millisecond,
		"1.5s": 1500 * time.Millisecond, "0.000000001s": 1, "2min": 2 * time.Minute, "3h": 3 * time.Hour, "1d": 24 * time.Hour,
		"20 ms": 20 * time.Millisecond, "2 min": 2 * time.Minute,
		"106751d": 106751 * 24 * time.Hour,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%s: got %v, want %v: %v", text, got, want, err)
		}
	}
}

// TestRefusedUnits checks that units that tools interpret differently are rejected, with the
// spellings to choose from.
func TestRefusedUnits(t *testing.T) {
	rate := func(s string) error { _, err := ParseRate(s); return err }
	packets := func(s string) error { _, err := ParsePacketRate(s); return err }
	size := func(s string) error { _, err := ParseSize(s); return err }
	span := func(s string) error { _, err := ParseDuration(s); return err }
	for _, test := range []struct {
		what  string
		parse func(string) error
		text  string
		says  []string
	}{
		{"rate", rate, "10", []string{"10bit", "10B/s"}},
		{"rate", rate, "1000000000000000000bit", []string{"more than 18 digits"}},
		{"rate", rate, "1kB/1000000000000000000ns", []string{"more than 18 digits"}},
		{"rate in packets", packets, "9223372036854775807p/1s", []string{"more than 18 digits"}},
		{"size", size, "9223372036854775807", []string{"more than 18 digits"}},
		{"size", size, "1.0000000000000000001KiB", []string{"more than 18 digits"}},
		{"time", span, "9223372036854775807ns", []string{"more than 18 digits"}},
		{"rate", rate, "1.5", []string{"1.5bit", "1.5B/s"}},
		{"rate", rate, "10k", []string{"ambiguous", "10kbit", "10kB/s"}},
		{"rate", rate, "10K", []string{"ambiguous", "10kbit", "10kB/s"}},
		{"rate", rate, "10M", []string{"ambiguous", "10mbit", "10MB/s"}},
		{"rate", rate, "10g", []string{"ambiguous", "10gbit", "10GB/s"}},
		{"rate", rate, "10kb", []string{"ambiguous", "10kbit", "10kB/s"}},
		{"rate", rate, "10Kb", []string{"ambiguous", "10kbit", "10kB/s"}},
		{"rate", rate, "10kbps", []string{"ambiguous", "10kbit", "10kB/s"}},
		{"rate", rate, "10Kbps", []string{"ambiguous", "10kbit", "10kB/s"}},
		{"rate", rate, "10mbps", []string{"ambiguous", "10mbit", "10MB/s"}},
		{"rate", rate, "10Mbps", []string{"ambiguous", "10mbit", "10MB/s"}},
		{"rate", rate, "10MBps", []string{"ambiguous", "10mbit", "10MB/s"}},
		{"rate", rate, "1.5gbps", []string{"ambiguous", "1.5gbit", "1.5GB/s"}},
		{"rate", rate, "10mb", []string{"ambiguous", "10mbit", "10MB/s"}},
		{"rate", rate, "10MB", []string{"10mbit", "10MB/s"}},
		{"rate", rate, "10bps", []string{"ambiguous", "10bit", "10B/s"}},
		{"rate", rate, "10b", []string{"ambiguous", "10bit", "10B/s"}},
		{"rate", rate, "10MBIT", []string{"unknown", "10mbit"}},
		{"rate", rate, "10MBit/s", []string{"unknown", "10mbit"}},
		{"rate", rate, "10 mbits", []string{"unknown", "10mbit"}},
		{"rate", rate, "10Mbits/s", []string{"unknown", "10mbit"}},
		{"rate", rate, "10Bit", []string{"unknown", "10bit"}},
		{"rate", rate, "10Kibit", []string{"unknown", "decimal", "kbit"}},
		{"rate", rate, "10 kibit/s", []string{"unknown", "decimal", "kbit"}},
		{"rate", rate, "50M", []string{"ambiguous", "50mbit", "50MB/s"}},
		{"rate", rate, "50mb", []string{"ambiguous", "50mbit", "50MB/s"}},
		{"rate", rate, "50Mbps", []string{"ambiguous", "50mbit", "50MB/s"}},
		{"rate", rate, "50 M", []string{"ambiguous", "50mbit", "50MB/s"}},
		{"rate", rate, "50 Mbps", []string{"ambiguous", "50mbit", "50MB/s"}},
		{"rate", rate, "200 Mb/s", []string{"ambiguous", "200mbit", "200MB/s"}},
		{"rate", rate, "10kb/s", []string{"ambiguous", "10kbit", "10kB/s"}},
		{"rate", rate, "10mb/s", []string{"ambiguous", "10mbit", "10MB/s"}},
		{"rate", rate, "10Mb/s", []string{"10mbit", "10MB/s"}},
		{"rate", rate, "10KB/s", []string{"10kB/s"}},
		{"rate", rate, "10/s", []string{"10kB"}},
		{"rate", rate, "10p/1s", nil},
		{"rate", rate, "10kB/", nil},
		{"rate", rate, "/1s", nil},
		{"rate", rate, "10kB/1m", []string{"ambiguous", "1min", "1ms"}},
		{"rate", rate, "10kB/m", []string{"ambiguous", "1min", "1ms"}},
		{"rate", rate, "10kB/0s", []string{"zero"}},
		{"rate", rate, "10kB/1s/1s", nil},
		{"rate", rate, "fast", []string{"10mbit"}},
		{"rate", rate, "10  mbit", []string{"mbit"}},
		{"rate", rate, "10 ", nil},
		{"rate", rate, "10\tmbit", nil},
		{"rate", rate, "10mbit ", nil},
		{"rate", rate, "10 mbit /s", nil},
		{"rate", rate, "10mbit/ s", nil},
		{"rate", rate, " 10mbit", nil},
		{"rate", rate, "10parsec", []string{"kbit"}},
		{"rate", rate, "-1mbit", nil},
		{"rate", rate, "+1mbit", nil},
		{"rate", rate, "1e6bit", nil},
		{"rate", rate, "0x10mbit", nil},
		{"rate", rate, "1,5mbit", nil},
		{"rate", rate, ".5mbit", nil},
		{"rate", rate, "5.mbit", nil},
		{"rate", rate, "", nil},
		{"rate", rate, "mbit", nil},
		{"rate", rate, "1000000000000000000bit", nil}, // 19 digits
		{"rate", rate, "999999999999999999tbit", []string{"digits"}},
		{"rate", rate, "0.000000000000000001bit", []string{"digits"}},
		{"rate", rate, "99999999999999999GB/1ns", []string{"digits"}},
		{"packets", packets, "100", []string{"100p/1s"}},
		{"packets", packets, "10mbit", []string{"100p/1s"}},
		{"packets", packets, "10kB/1s", []string{"100p"}},
		{"packets", packets, "10/1s", []string{"100p"}},
		{"packets", packets, "10p/0s", []string{"zero"}},
		{"size", size, "64k", []string{"ambiguous", "64kB", "64KiB"}},
		{"size", size, "64K", []string{"ambiguous", "64kB", "64KiB"}},
		{"size", size, "64kb", []string{"ambiguous", "64kB", "64KiB"}},
		{"size", size, "64Kb", []string{"ambiguous", "64kB", "64KiB"}},
		{"size", size, "64KB", []string{"ambiguous", "64kB", "64KiB"}},
		{"size", size, "1m", []string{"ambiguous", "1MB", "1MiB"}},
		{"size", size, "1mb", []string{"ambiguous", "1MB", "1MiB"}},
		{"size", size, "1M", []string{"ambiguous", "1MB", "1MiB"}},
		{"size", size, "1Gb", []string{"ambiguous", "1GB", "1GiB"}},
		{"size", size, "64kib", []string{"case-sensitive", "64KiB"}},
		{"size", size, "64Kib", []string{"case-sensitive", "64KiB"}},
		{"size", size, "1mib", []string{"case-sensitive", "1MiB"}},
		{"size", size, "64b", []string{"ambiguous", "64B"}},
		{"size", size, "64  KiB", []string{"KiB"}},
		{"size", size, "64 KB", []string{"ambiguous", "64kB", "64KiB"}},
		{"size", size, "64 Kbit", []string{"unit of rate"}},
		{"size", size, "1.5", []string{"whole"}},
		{"size", size, "0.3B", []string{"whole"}},
		{"size", size, "1.0001kB", []string{"whole"}},
		{"size", size, "-1", nil},
		{"size", size, "0x10", nil},
		{"size", size, "1_000", nil},
		{"size", size, "", nil},
		{"size", size, "KiB", nil},
		{"size", size, "999999999999999999KiB", nil},
		{"size", size, "9223372036854775808", nil},
		{"time", span, "20", []string{"ms"}},
		{"time", span, "20m", []string{"ambiguous", "20min", "20ms"}},
		{"time", span, "20MS", nil},
		{"time", span, "20sec", nil},
		{"time", span, "0.5ns", []string{"nanoseconds"}},
		{"time", span, "106752d", []string{"292 years"}},
		{"time", span, "-1s", nil},
		{"time", span, "", nil},
	} {
		err := test.parse(test.text)
		if err == nil {
			t.Errorf("%s %q: got nil, want an error", test.what, test.text)
			continue
		}
		for _, part := range test.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s %q: got %v, want it to contain %q", test.what, test.text, err, part)
			}
		}
		if strings.ContainsAny(err.Error(), "\n") {
			t.Errorf("%s %q: got %v, want one line", test.what, test.text, err)
		}
	}
}

// TestSuggestionsParse checks that the spellings that errors suggest are accepted.
func TestSuggestionsParse(t *testing.T) {
	for _, unit := range []string{
		"", "k", "K", "m", "M", "g", "G", "t", "T", "b", "kb", "Mb", "gB", "bps", "kbps", "MBps", "MBIT",
		"Mbits", "kibit", "kib", "KB", " M", " Mbps", " kB",
	} {
		if _, err := ParseRate("7" + unit); err != nil {
			tryAdvice(t, err, func(s string) error { _, err := ParseRate(s); return err })
		}
		if _, err := ParseSize("7" + unit); err != nil {
			tryAdvice(t, err, func(s string) error { _, err := ParseSize(s); return err })
		}
	}
}

func tryAdvice(t *testing.T, refused error, parse func(string) error) {
	t.Helper()
	_, advice, _ := strings.Cut(refused.Error(), "write ")
	for _, word := range strings.Fields(advice) {
		if word = strings.TrimRight(word, ","); strings.HasPrefix(word, "7") {
			if err := parse(word); err != nil {
				t.Errorf("%v: got %v for %s, want it accepted", refused, err, word)
			}
		}
	}
}

func TestParseShare(t *testing.T) {
	for text, want := range map[string]*big.Rat{
		"full": big.NewRat(1, 1), "empty": new(big.Rat), "50%": big.NewRat(1, 2), "100%": big.NewRat(1, 1),
		"0%": new(big.Rat), "12.5%": big.NewRat(1, 8), "50 %": big.NewRat(1, 2), "0.0000001%": big.NewRat(1, 1e9),
	} {
		s, err := parseShare(text)
		got := big.NewRat(1, 1)
		if s.Den != 0 {
			got = big.NewRat(s.Num, s.Den)
		}
		if err != nil || got.Cmp(want) != 0 {
			t.Errorf("%s: got %v, want %v: %v", text, got, want, err)
		}
	}
	for _, text := range []string{"", "half", "50", "101%", "100.0000001%", "-1%", "50  %", "0.00000001%"} {
		if _, err := parseShare(text); err == nil {
			t.Errorf("%q: got nil, want an error", text)
		}
	}
}

// FuzzUnits checks that a rate is the same after it is written and read again, and that no
// text makes a parser panic.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{
		"10mbit", "1.5mbit", "10kB/1min", "1B/8s", "64KiB", "20ms", "100p/1s", "10kbps", "50%", "0bit", "1m",
		"999999999999999999tbit",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := ParseRate(s); err == nil {
			if r.Bytes < 0 || r.Period <= 0 {
				t.Fatalf("%q: got %d bytes in %d ns", s, r.Bytes, r.Period)
			}
			if again, err := ParseRate(r.String()); err == nil && again.Cmp(r) != 0 {
				t.Fatalf("%q: got %v, which parses as %v", s, r, again)
			}
		}
		if r, err := ParsePacketRate(s); err == nil && (r.Bytes < 0 || r.Period <= 0) {
			t.Fatalf("%q: got %d packets in %d ns", s, r.Bytes, r.Period)
		}
		if n, err := ParseSize(s); err == nil && n < 0 {
			t.Fatalf("%q: got %d bytes", s, n)
		}
		if d, err := ParseDuration(s); err == nil && d < 0 {
			t.Fatalf("%q: got %v", s, d)
		}
		if share, err := parseShare(s); err == nil &&
			(share.Num < 0 || share.Num > max(share.Den, 1) || share.Den > math.MaxInt32) {
			t.Fatalf("%q: got %d/%d", s, share.Num, share.Den)
		}
	})
}

// unitModel reads quantities by regular expressions, with exact fractions. The fields of its results that
// are nil are refused.
type unitModel struct{ rate, packetRate, size, span *big.Rat }

var (
	modelBits    = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?([kKmMgGtT]?)bit$`)
	modelSize    = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(?: ?(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB))?$`)
	modelPackets = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?p$`)
	modelTime    = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?(ns|us|µs|ms|s|min|h|d)$`)
	modelLong    = regexp.MustCompile(`[0-9]{19}`)
)

func modelOf(s string) (m unitModel) {
	if modelLong.MatchString(s) {
		return m
	}
	number := func(text string) *big.Rat { n, _ := new(big.Rat).SetString(text); return n }
	power := func(base, of int64) *big.Rat {
		return new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(base), big.NewInt(of), nil))
	}
	int64s := func(n *big.Rat) *big.Rat { // nil unless its parts are int64
		if n == nil || !n.Num().IsInt64() || !n.Denom().IsInt64() {
			return nil
		}
		return n
	}
	wholes := func(n *big.Rat) *big.Rat {
		if n == nil || !n.IsInt() {
			return nil
		}
		return int64s(n)
	}
	bits := func(s string) *big.Rat { // bytes
		p := modelBits.FindStringSubmatch(s)
		if p == nil {
			return nil
		}
		n := number(p[1])
		n.Mul(n, power(1000, int64(strings.Index("kmgt", strings.ToLower(p[2]))+1)*int64(len(p[2]))))
		return n.Quo(n, big.NewRat(8, 1))
	}
	size := func(s string) *big.Rat {
		p := modelSize.FindStringSubmatch(s)
		switch {
		case p == nil:
			return nil
		case strings.HasSuffix(p[2], "iB"):
			return new(big.Rat).Mul(number(p[1]), power(1024, int64(strings.Index("KMGT", p[2][:1])+1)))
		case len(p[2]) == 2:
			return new(big.Rat).Mul(number(p[1]), power(1000, int64(strings.Index("kMGT", p[2][:1])+1)))
		}
		return number(p[1])
	}
	span := func(s string) *big.Rat { // ns
		p := modelTime.FindStringSubmatch(s)
		if p == nil {
			return nil
		}
		ns := map[string]int64{
			"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9, "d": 86400e9,
		}
		n := number(p[1])
		return n.Mul(n, big.NewRat(ns[p[2]], 1))
	}
	m.size, m.span = wholes(size(s)), wholes(span(s))
	amount, period, per := strings.Cut(s, "/")
	if !per {
		if n := bits(s); n != nil {
			m.rate = int64s(n.Quo(n, big.NewRat(1e9, 1)))
		}
		return m
	}
	if strings.Trim(period, "nuµmsihd") == "" { // a unit alone
		period = "1" + period
	}
	ns := wholes(span(period))
	if ns == nil || ns.Sign() == 0 {
		return m
	}
	bytes := bits(amount)
	if p := modelSize.FindStringSubmatch(amount); p != nil && p[2] != "" {
		bytes = size(amount)
	}
	if bytes != nil {
		m.rate = int64s(bytes.Quo(bytes, ns))
	}
	if p := modelPackets.FindStringSubmatch(amount); p != nil {
		n := number(p[1])
		m.packetRate = int64s(n.Quo(n, ns))
	}
	return m
}

// checkUnits compares the parsers with the model.
func checkUnits(t *testing.T, s string) (accepted bool) {
	t.Helper()
	check := func(what string, got, want *big.Rat, err error) {
		t.Helper()
		if (err == nil) != (want != nil) || err == nil && got.Cmp(want) != 0 {
			t.Errorf("%s %q: got %v, %v, want %v", what, s, got, err, want)
		}
		accepted = accepted || err == nil
	}
	rat := func(r meter.Rate) *big.Rat { return big.NewRat(r.Bytes, max(int64(r.Period), 1)) }
	want := modelOf(s)
	r, err := ParseRate(s)
	check("rate", rat(r), want.rate, err)
	r, err = ParsePacketRate(s)
	check("packet rate", rat(r), want.packetRate, err)
	n, err := ParseSize(s)
	check("size", big.NewRat(n, 1), want.size, err)
	d, err := ParseDuration(s)
	check("time", big.NewRat(int64(d), 1), want.span, err)
	return accepted
}

// randomQuantity is a quantity of likely parts, most of them right.
func randomQuantity(r *rand.Rand) string {
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	unit := func() string {
		if r.IntN(2) == 0 {
			return pick("", "k", "K", "m", "M", "g", "G", "t", "T") +
				pick("bit", "B", "iB", "b", "bps", "bits", "ibit", "", "Bit")
		}
		return pick("p", "ns", "us", "µs", "ms", "s", "m", "min", "h", "d", "sec", "%", "S")
	}
	number := func() string {
		return pick("0", "1", "50", "007", "1.5", "0.001", "999999999999999999", "1000000000000000000",
			"0.000000000000000001", "123456789.875", "1.", ".5", "")
	}
	s := number() + pick("", "", " ", "  ", "\t") + unit()
	for r.IntN(2) == 0 {
		s += "/" + pick("", "", ".", "+") + pick("", number()) + pick("", "", " ") + unit()
	}
	return s + pick("", "", "", "", " ", "\n")
}

func TestUnitsModel(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 3))
	accepted := 0
	for range 60_000 {
		if checkUnits(t, randomQuantity(r)) {
			accepted++
		}
	}
	if accepted < 2_000 {
		t.Errorf("%d accepted quantities are too few for a test", accepted)
	}
}

// FuzzUnitsModel compares the parsers with the model on any text, and on a likely quantity.
func FuzzUnitsModel(f *testing.F) {
	for _, s := range []string{
		"50 Mbit/s", "50Mbit", "10 kB/1 min", "64 KiB", "20 ms", "100 p/1s", "50Mbps", "1.5tbit",
	} {
		f.Add(s, uint64(1))
	}
	f.Fuzz(func(t *testing.T, s string, seed uint64) {
		checkUnits(t, s)
		checkUnits(t, randomQuantity(rand.New(rand.NewPCG(seed, 1))))
	})
}

// TestSeparateUnits checks that a unit may be a word of its own behind its number in flags and changes.
func TestSeparateUnits(t *testing.T) {
	for _, c := range []struct{ words, want []string }{
		{[]string{"rate=50", "Mbit/s", "for=1", "h"}, []string{"rate=50 Mbit/s", "for=1 h"}},
		{[]string{"rate=50", "Mbps"}, []string{"rate=50 Mbps"}},
		{[]string{"rate=100", "p/1s", "burst=64", "KiB"}, []string{"rate=100 p/1s", "burst=64 KiB"}},
		{[]string{"rate=50mbit", "s"}, []string{"rate=50mbit", "s"}},
		{[]string{"rate=50", "off"}, []string{"rate=50", "off"}},
		{[]string{"50", "mbit"}, []string{"50", "mbit"}},
		{[]string{"mbit"}, []string{"mbit"}},
	} {
		if got := JoinUnits(c.words); !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.words, got, c.want)
		}
	}
	f, err := OneLiner{
		Meter: "trtcm cir=10 Mbit/s, cbs=64 KiB pir=20 mbit pbs=20 ms", Queue: "rate=20 Mbit limit=100 ms",
		Red: "queue",
	}.Load()
	if err != nil {
		t.Fatal(err)
	}
	want := meter.TRTCM{CIR: meter.BitRate(10e6), CBS: 65536, PIR: meter.BitRate(20e6), PBS: 50_000}
	got := f.Policy.Classes[0].Meter.Params.(meter.TRTCM)
	if got.CIR.Cmp(want.CIR) != 0 || got.PIR.Cmp(want.PIR) != 0 || got.CBS != want.CBS ||
		got.PBS != want.PBS {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := (OneLiner{Meter: "gcra rate=10  mbit burst=2kB"}).Load(); err == nil ||
		!strings.Contains(err.Error(), "--meter:1:15") {
		t.Errorf("two spaces: got %v, want an error at the unit", err)
	}
	if _, err := (OneLiner{Rate: "50 Mbit/s"}).Load(); err != nil {
		t.Error(err)
	}
}

// TestCutQuantity compares cutQuantity and tooLong with regular expressions, on random text.
func TestCutQuantity(t *testing.T) {
	quantity, tooManyDigits := regexp.MustCompile(`^([0-9]{1,18}(?:\.[0-9]{1,18})?)(?: ([^ \n].*)|(.*))$`),
		regexp.MustCompile(`[0-9]{19}`)
	r := rand.New(rand.NewPCG(1, 1))
	parts := []string{"1", "0", "12345678", "999999999", ".", "k", "bit", "/", "\n", "-", "µs", " "}
	matches, long := 0, 0
	for range 100_000 {
		s := ""
		for range r.IntN(6) {
			s += parts[r.IntN(len(parts))]
		}
		number, unit, ok := cutQuantity(s)
		m := quantity.FindStringSubmatch(s)
		if ok != (m != nil) || ok && (number != m[1] || unit != m[2]+m[3]) {
			t.Fatalf("%q: got %q, %q, %v, want %q", s, number, unit, ok, m)
		}
		if got := tooLong(s) != nil; got != tooManyDigits.MatchString(s) {
			t.Fatalf("%q: too long %v", s, got)
		} else if got {
			long++
		}
		if ok {
			matches++
		}
	}
	if matches < 10_000 || long < 500 {
		t.Errorf("%d quantities and %d long numbers are too few for a test", matches, long)
	}
}
