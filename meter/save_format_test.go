package meter

import (
	"encoding/hex"
	"slices"
	"testing"
	"time"
)

// savedMeters has a saved meter of each kind after two packets, in format 1: the parameters,
// and then the bytes. If the test of a change needs other bytes, the format needs a new number.
var savedMeters = []struct {
	params Params
	hex    string
}{
	{
		TokenBucket{Rate: BitRate(8e6), Burst: 3000},
		"6d7472010c746f6b656e2d6275636b657400127a00000000000050d6dc01000000b80b00000000000000000000000000" +
			"000000000000000000e803000000000000e0c81000000000000000000000000000f9dad828",
	},
	{
		TokenBucket{Rate: BitRate(8e6), Burst: 3000, GCRA: true},
		"6d747201046763726100127a00000000000050d6dc01000000b80b000000000000000000000000000001000000000000" +
			"00e803000000000000e0c8100000000000000000000000000098a6acf1",
	},
	{
		TokenBucket{Rate: BitRate(8e6), Burst: 3000, Warmup: time.Second},
		"6d7472010c746f6b656e2d6275636b657400127a00000000000050d6dc01000000b80b00000000000000ca9a3b000000" +
			"000000000000000000d007000000000000102c790400000000e803000000000000b7027c91",
	},
	{
		SRTCM{BitRate(8e6), 3000, 4000},
		"6d74720105737274636d00127a00000000000050d6dc01000000b80b000000000000a00f000000000000e80300000000" +
			"0000e0c81000000000000000000000000000836c397f",
	},
	{
		TRTCM{BitRate(8e6), 3000, BitRate(9e6), 4000},
		"6d74720105747274636d00127a00000000000050d6dc01000000b80b00000000000040548900000000000050d6dc0100" +
			"0000a00f000000000000e803000000000000004786000000000000478600000000004659dcf0",
	},
	{
		TRTCM4115{BitRate(8e6), 3000, BitRate(9e6), 4000, true},
		"6d74720109747274636d3431313500127a00000000000050d6dc01000000b80b00000000000040548900000000000050" +
			"d6dc01000000a00f0000000000000100000000000000e8030000000000000047860000000000282300000000000014da" +
			"efa5",
	},
	{
		TRTCM{Unlimited, 3000, Unlimited, 1 << 50},
		"6d74720105747274636dffffffffffffff7f0100000000000000b80b000000000000ffffffffffffff7f010000000000" +
			"00000000000000000400d0070000000000006009000000000000a8fdffffffff03000100000000000000000000000000" +
			"000000000000b0ceaf1b",
	},
	{
		FixedWindow{3000, time.Second},
		"6d7472010c66697865642d77696e646f77b80b00000000000000ca9a3b0000000000000000000000004c040000000000" +
			"00000000000000000070cfb7b4",
	},
	{
		SlidingWindow{3000, time.Second, 10},
		"6d7472010e736c6964696e672d77696e646f77b80b00000000000000ca9a3b000000000a000000000000000000000000" +
			"0000004c0400000000000001000000000000000100000000000000000000004c04000000000000112b026a",
	},
	{
		SlidingCounter{3000, time.Second},
		"6d7472010f736c6964696e672d636f756e746572b80b00000000000000ca9a3b0000000000000000000000004c040000" +
			"000000000000000000000000e08ce772",
	},
	{
		SlidingLog{3000, time.Second, 10},
		"6d7472010b736c6964696e672d6c6f67b80b00000000000000ca9a3b000000000a00000000000000d007000000000000" +
			"4c04000000000000020000000000000002000000e803000000000000f401000000000000d00700000000000058020000" +
			"00000000e21e7424",
	},
	{
		TSWTCM{BitRate(8e6), BitRate(9e6), time.Second, 7},
		"6d7472010674737774636d00127a00000000000050d6dc0100000040548900000000000050d6dc0100000000ca9a3b00" +
			"0000000700000000000000d007000000000000b7ff4b04000000000000000000000000ab646e8e",
	},
}

// TestSavedFormat saves and restores each meter.
func TestSavedFormat(t *testing.T) {
	var seen []Kind
	for _, saved := range savedMeters {
		want := New(compileProfile(t, saved.params))
		want.Color(1000, 500, Green)
		want.Color(2000, 600, Green)
		if b, err := want.AppendBinary(nil); err != nil || hex.EncodeToString(b) != saved.hex {
			t.Errorf("%+v: got %x, %v, want %s", saved.params, b, err, saved.hex)
		}
		data, err := hex.DecodeString(saved.hex)
		if err != nil {
			t.Fatal(err)
		}
		var m Meter
		if err := m.UnmarshalBinary(data); err != nil {
			t.Errorf("%+v: %v", saved.params, err)
			continue
		}
		if got, want := m.Explain(5000, 2000, Green), want.Explain(5000, 2000, Green); got != want || m.Profile().Params() != saved.params {
			t.Errorf("got %+v with %+v, want %+v with %+v", got, m.Profile().Params(), want, saved.params)
		}
		seen = append(seen, m.Profile().Kind())
	}
	for _, kind := range Kinds() {
		if !slices.Contains(seen, kind) {
			t.Errorf("no saved meter of kind %v", kind)
		}
	}
}

// TestSavedTableFormat saves and restores a table in format 1, which has a key with the profile of the
// table, two keys that share another one, and packets whose key found no room. If it needs other bytes,
// the format needs a new number.
func TestSavedTableFormat(t *testing.T) {
	const want = "6d7474010c746f6b656e2d6275636b657400127a00000000000050d6dc01000000b80b00000000000000000000000000" +
		"00000000000000000001000000b80b000000000000c02709000000000000000000000000000300000000000000000000" +
		"000000000020a107000000000000000000000000000100000061010000000b736c6964696e672d6c6f67b80b00000000" +
		"000000ca9a3b000000000a00000000000000e803000000000000f401000000000000010000000000000001000000e803" +
		"000000000000f40100000000000002000000626301000000d007000000000000f4010000000000000100000000000000" +
		"01000000d007000000000000f4010000000000000000000002651fb3"
	p := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 3000})
	own := compileProfile(t, SlidingLog{3000, time.Second, 10})
	table, _ := NewTable[string](p, TableConfig{Keys: 3, Idle: true})
	for i, key := range []string{"a", "bc", ""} {
		if i > 0 {
			if err := table.Set(key, 1000, own); err != nil {
				t.Fatal(err)
			}
		}
		table.Color(key, int64(1000*i), 500, Green)
	}
	table.Color("no room", 3000, 600, Green)
	if b, err := table.AppendBinary(nil); err != nil || hex.EncodeToString(b) != want {
		t.Errorf("got %x, %v, want %s", b, err, want)
	}
	data, err := hex.DecodeString(want)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := NewTable[string](p, TableConfig{Keys: 3, Idle: true})
	if err := again.UnmarshalBinary(data); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "bc", "", "no room"} {
		if got, want := again.Explain(key, 5000, 2000, Green), table.Explain(key, 5000, 2000, Green); got != want {
			t.Errorf("key %q: got %+v, want %+v", key, got, want)
		}
	}
}
