package meter

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"
)

// savedMeters has a saved meter of each kind after two packets: the parameters, and then the
// bytes in format 1 and in format 2. If a change needs other bytes, the format needs a new
// number, except for a new parameter.
var savedMeters = []struct {
	params       Params
	format1, hex string
}{
	{
		TokenBucket{Rate: BitRate(8e6), Burst: 3000},
		"6d7472010c746f6b656e2d6275636b657400127a00000000000050d6dc01000000b80b00000000000000000000000000" +
			"000000000000000000e803000000000000e0c81000000000000000000000000000f9dad828",
		"6d7472020c746f6b656e2d6275636b657403047261746500127a00000000000050d6dc01000000056275727374b80b00" +
			"0000000000067761726d75700000000000000000e803000000000000e0c8100000000000000000000000000047faac44",
	},
	{
		TokenBucket{Rate: BitRate(8e6), Burst: 3000, GCRA: true},
		"6d747201046763726100127a00000000000050d6dc01000000b80b000000000000000000000000000001000000000000" +
			"00e803000000000000e0c8100000000000000000000000000098a6acf1",
		"6d747202046763726102047261746500127a00000000000050d6dc01000000056275727374b80b000000000000e80300" +
			"0000000000e0c810000000000000000000000000000ab66770",
	},
	{
		TokenBucket{Rate: BitRate(8e6), Burst: 3000, Warmup: time.Second},
		"6d7472010c746f6b656e2d6275636b657400127a00000000000050d6dc01000000b80b00000000000000ca9a3b000000" +
			"000000000000000000d007000000000000102c790400000000e803000000000000b7027c91",
		"6d7472020c746f6b656e2d6275636b657403047261746500127a00000000000050d6dc01000000056275727374b80b00" +
			"0000000000067761726d757000ca9a3b00000000d007000000000000102c790400000000e8030000000000003907f95d",
	},
	{
		SRTCM{CIR: BitRate(8e6), CBS: 3000, EBS: 4000},
		"6d74720105737274636d00127a00000000000050d6dc01000000b80b000000000000a00f000000000000e80300000000" +
			"0000e0c81000000000000000000000000000836c397f",
		"6d74720205737274636d030363697200127a00000000000050d6dc0100000003636273b80b00000000000003656273a0" +
			"0f000000000000e803000000000000e0c810000000000000000000000000003ee6da7c",
	},
	{
		TRTCM{CIR: BitRate(8e6), CBS: 3000, PIR: BitRate(9e6), PBS: 4000},
		"6d74720105747274636d00127a00000000000050d6dc01000000b80b00000000000040548900000000000050d6dc0100" +
			"0000a00f000000000000e803000000000000004786000000000000478600000000004659dcf0",
		"6d74720205747274636d040363697200127a00000000000050d6dc0100000003636273b80b0000000000000370697240" +
			"548900000000000050d6dc0100000003706273a00f000000000000e80300000000000000478600000000000047860000" +
			"000000a4758cf3",
	},
	{
		TRTCM4115{CIR: BitRate(8e6), CBS: 3000, EIR: BitRate(9e6), EBS: 4000, Coupling: true},
		"6d74720109747274636d3431313500127a00000000000050d6dc01000000b80b00000000000040548900000000000050" +
			"d6dc01000000a00f0000000000000100000000000000e8030000000000000047860000000000282300000000000014da" +
			"efa5",
		"6d74720209747274636d34313135050363697200127a00000000000050d6dc0100000003636273b80b00000000000003" +
			"65697240548900000000000050d6dc0100000003656273a00f00000000000008636f75706c696e670100000000000000" +
			"e80300000000000000478600000000002823000000000000e4e8cff1",
	},
	{
		TRTCM{CIR: Unlimited, CBS: 3000, PIR: Unlimited, PBS: 1 << 50},
		"6d74720105747274636dffffffffffffff7f0100000000000000b80b000000000000ffffffffffffff7f010000000000" +
			"00000000000000000400d0070000000000006009000000000000a8fdffffffff03000100000000000000000000000000" +
			"000000000000b0ceaf1b",
		"6d74720205747274636d0403636972ffffffffffffff7f010000000000000003636273b80b00000000000003706972ff" +
			"ffffffffffff7f0100000000000000037062730000000000000400d0070000000000006009000000000000a8fdffffff" +
			"ff0300010000000000000000000000000000000000000042a180ef",
	},
	{
		FixedWindow{Limit: 3000, Window: time.Second},
		"6d7472010c66697865642d77696e646f77b80b00000000000000ca9a3b0000000000000000000000004c040000000000" +
			"00000000000000000070cfb7b4",
		"6d7472020c66697865642d77696e646f7702056c696d6974b80b0000000000000677696e646f7700ca9a3b0000000000" +
			"000000000000004c04000000000000000000000000000049ce9848",
	},
	{
		SlidingWindow{Limit: 3000, Window: time.Second, Slots: 10},
		"6d7472010e736c6964696e672d77696e646f77b80b00000000000000ca9a3b000000000a000000000000000000000000" +
			"0000004c0400000000000001000000000000000100000000000000000000004c04000000000000112b026a",
		"6d7472020e736c6964696e672d77696e646f7703056c696d6974b80b0000000000000677696e646f7700ca9a3b000000" +
			"0005736c6f74730a0000000000000000000000000000004c040000000000000100000000000000010000000000000000" +
			"0000004c040000000000000489433d",
	},
	{
		SlidingCounter{Limit: 3000, Window: time.Second},
		"6d7472010f736c6964696e672d636f756e746572b80b00000000000000ca9a3b0000000000000000000000004c040000" +
			"000000000000000000000000e08ce772",
		"6d7472020f736c6964696e672d636f756e74657202056c696d6974b80b0000000000000677696e646f7700ca9a3b0000" +
			"000000000000000000004c04000000000000000000000000000056fdde43",
	},
	{
		SlidingLog{Limit: 3000, Window: time.Second, Entries: 10},
		"6d7472010b736c6964696e672d6c6f67b80b00000000000000ca9a3b000000000a00000000000000d007000000000000" +
			"4c04000000000000020000000000000002000000e803000000000000f401000000000000d00700000000000058020000" +
			"00000000e21e7424",
		"6d7472020b736c6964696e672d6c6f6703056c696d6974b80b0000000000000677696e646f7700ca9a3b000000000765" +
			"6e74726965730a00000000000000d0070000000000004c04000000000000020000000000000002000000e80300000000" +
			"0000f401000000000000d007000000000000580200000000000048aedddf",
	},
	{
		TSWTCM{CIR: BitRate(8e6), PIR: BitRate(9e6), Window: time.Second, Seed: 7},
		"6d7472010674737774636d00127a00000000000050d6dc0100000040548900000000000050d6dc0100000000ca9a3b00" +
			"0000000700000000000000d007000000000000b7ff4b04000000000000000000000000ab646e8e",
		"6d7472020674737774636d040363697200127a00000000000050d6dc010000000370697240548900000000000050d6dc" +
			"010000000677696e646f7700ca9a3b0000000004736565640700000000000000d007000000000000b7ff4b0400000000" +
			"0000000000000000a852a9b2",
	},
}

// TestSavedFormat saves each meter, and restores it from both formats.
func TestSavedFormat(t *testing.T) {
	var seen []Kind
	for _, saved := range savedMeters {
		want := New(compileProfile(t, saved.params))
		want.Color(1000, 500, Green)
		want.Color(2000, 600, Green)
		if b, err := want.AppendBinary(nil); err != nil || hex.EncodeToString(b) != saved.hex {
			t.Errorf("%+v: got %x, %v, want %s", saved.params, b, err, saved.hex)
		}
		explained := want.Explain(5000, 2000, Green)
		for _, text := range []string{saved.format1, saved.hex} {
			var m Meter
			if err := m.UnmarshalBinary(fromHex(t, text)); err != nil {
				t.Errorf("%+v, %s: %v", saved.params, text, err)
				continue
			}
			params := m.Profile().Params()
			if got := m.Explain(5000, 2000, Green); got != explained || params != saved.params {
				t.Errorf("%s: got %+v with %+v, want %+v with %+v", text, got, params, explained,
					saved.params)
			}
		}
		seen = append(seen, saved.params.Kind())
	}
	for _, kind := range Kinds() {
		if !slices.Contains(seen, kind) {
			t.Errorf("no saved meter of kind %v", kind)
		}
	}
}

func fromHex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSavedTableFormat saves a table, and restores it from both formats. It has a key with the profile of the
// table, two keys that share another one, and packets whose key found no room. If it needs other bytes,
// the format needs a new number, except for a new parameter.
func TestSavedTableFormat(t *testing.T) {
	const (
		format1 = "6d7474010c746f6b656e2d6275636b657400127a00000000000050d6dc01000000b80b00000000000000000000000000" +
			"00000000000000000001000000b80b000000000000c02709000000000000000000000000000300000000000000000000" +
			"000000000020a107000000000000000000000000000100000061010000000b736c6964696e672d6c6f67b80b00000000" +
			"000000ca9a3b000000000a00000000000000e803000000000000f401000000000000010000000000000001000000e803" +
			"000000000000f40100000000000002000000626301000000d007000000000000f4010000000000000100000000000000" +
			"01000000d007000000000000f4010000000000000000000002651fb3"
		want = "6d7474020c746f6b656e2d6275636b657403047261746500127a00000000000050d6dc01000000056275727374b80b00" +
			"0000000000067761726d7570000000000000000001000000b80b000000000000c0270900000000000000000000000000" +
			"0300000000000000000000000000000020a107000000000000000000000000000100000061010000000b736c6964696e" +
			"672d6c6f6703056c696d6974b80b0000000000000677696e646f7700ca9a3b0000000007656e74726965730a00000000" +
			"000000e803000000000000f401000000000000010000000000000001000000e803000000000000f40100000000000002" +
			"000000626301000000d007000000000000f401000000000000010000000000000001000000d007000000000000f40100" +
			"000000000000000000990c37b6"
	)
	p := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 3000})
	own := compileProfile(t, SlidingLog{Limit: 3000, Window: time.Second, Entries: 10})
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
	var explained []Explanation
	keys := []string{"a", "bc", "", "no room"}
	for _, key := range keys {
		explained = append(explained, table.Explain(key, 5000, 2000, Green))
	}
	for _, text := range []string{format1, want} {
		again, _ := NewTable[string](p, TableConfig{Keys: 3, Idle: true})
		if err := again.UnmarshalBinary(fromHex(t, text)); err != nil {
			t.Fatal(err)
		}
		for i, key := range keys {
			if got := again.Explain(key, 5000, 2000, Green); got != explained[i] {
				t.Errorf("%s: key %q: got %+v, want %+v", text, key, got, explained[i])
			}
		}
	}
}

// TestSavedWithout restores each kind of meter from a record that lacks one parameter, as if it had
// been saved before the parameter existed: it has its default.
func TestSavedWithout(t *testing.T) {
	for _, saved := range savedMeters {
		data := fromHex(t, saved.hex)
		kind := saved.params.Kind().Info()
		for _, name := range slices.Concat(kind.Required, kind.Optional) {
			params := WithField(saved.params, name, Field(kind.Defaults, name))
			want, invalid := params.Profile()
			r := savedReader{format: savedFormat, rest: withoutParam(t, data, kind.Name, name)}
			got := r.profile(nil)
			switch {
			case (r.err == nil) != (invalid == nil):
				t.Errorf("%v without %s: got error %v, want that of %+v: %v", kind.Name, name, r.err, params,
					invalid)
			case invalid != nil && !strings.Contains(r.err.Error(), invalid.Error()):
				t.Errorf("%v without %s: got error %v, want %v", kind.Name, name, r.err, invalid)
			case invalid == nil && got.Params() != want.Params():
				t.Errorf("%v without %s: got %+v, want %+v", kind.Name, name, got.Params(), want.Params())
			}
		}
	}
}

// withoutParam returns the profile of a saved meter without a parameter.
func withoutParam(t *testing.T, data []byte, kind, name string) []byte {
	t.Helper()
	profile := slices.Clone(data[len("mtr")+1:])
	count := 1 + len(kind)
	for at := count + 1; ; {
		length := 1 + int(profile[at]) + 8
		found := string(profile[at+1 : at+1+int(profile[at])])
		if slices.Contains([]string{"rate", "cir", "pir", "eir"}, found) {
			length += 8
		}
		if found == name {
			profile[count]--
			return slices.Delete(profile, at, at+length)
		}
		at += length
	}
}

// TestSavedBefore restores whole meters that were saved before a parameter existed, and the same
// parameters in another order.
func TestSavedBefore(t *testing.T) {
	const (
		rate  = "\x04rate\x00\x12\x7a\x00\x00\x00\x00\x00\x00\x50\xd6\xdc\x01\x00\x00\x00" // 8e6 in 8 s
		burst = "\x05burst\xb8\x0b\x00\x00\x00\x00\x00\x00"
		state = "\xe8\x03\x00\x00\x00\x00\x00\x00\xe0\xc8\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	)
	want := New(compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 3000}))
	want.Color(1000, 500, Green)
	want.Color(2000, 600, Green)
	explained := want.Explain(5000, 2000, Green)
	for text, reason := range map[string]string{
		"\x02" + rate + burst:                       "",
		"\x02" + burst + rate:                       "",
		"\x03" + rate + "\x05speed12345678" + burst: `token-bucket has the parameter "speed", which is unknown or repeated`,
		"\x03" + burst + rate + burst:               `the parameter "burst", which is unknown or repeated`,
		"\x03" + rate + burst + "\x04gcra12345678":  `the parameter "gcra", which is unknown or repeated`,
		"\x01" + rate:                               "invalid: Burst must be above zero",
		"\x00":                                      "invalid: Rate",
		"\x02" + rate + "\x05burst\xb8\x0b":         "corrupt",
		"\xff" + rate + burst:                       "corrupt",
	} {
		var m Meter
		err := m.UnmarshalBinary(appendChecksum([]byte("mtr\x02\x0ctoken-bucket"+text+state), 0))
		if reason != "" {
			if err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("%q: got %v, want %q", text, err, reason)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := m.Explain(5000, 2000, Green); got != explained {
			t.Errorf("%q: got %+v, want %+v", text, got, explained)
		}
	}
}
