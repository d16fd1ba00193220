package meter

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
)

// compareKeys saves and restores a table with other keys.
func compareKeys[K comparable](t *testing.T, keys ...K) {
	t.Helper()
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1), Burst: 1000})
	table, _ := NewTable[K](p, TableConfig{Keys: 10})
	for i, key := range keys {
		table.Color(key, 0, 10*(i+1), Green)
	}
	table = restoredTable(t, table, p)
	for i, key := range keys {
		if tc, _, known := table.Tokens(key, 0); !known || tc != int64(1000-10*(i+1)) {
			t.Errorf("%T %v: got %d tokens, known: %v", key, key, tc, known)
		}
	}
	if table.Len() != len(keys) {
		t.Errorf("%T: got %d keys, want %d", keys[0], table.Len(), len(keys))
	}
}

type (
	customer string
	number32 int32
	vlans    struct{ Outer, Inner uint16 }
	hidden   struct{ id uint32 }
	custom   struct{ name, site string }
	oneWay   struct{ ID *int }
)

func (c custom) AppendBinary(b []byte) ([]byte, error) {
	if c.name == "" {
		return b, errors.New("no name")
	}
	return append(b, c.name+"/"+c.site...), nil
}

func (c *custom) UnmarshalBinary(data []byte) (err error) {
	var ok bool
	if c.name, c.site, ok = strings.Cut(string(data), "/"); !ok {
		err = errors.New("no site")
	}
	return err
}

func (oneWay) AppendBinary(b []byte) ([]byte, error) { return b, nil }

// TestTableSavedKeys has keys of each type that can be saved, and of others.
func TestTableSavedKeys(t *testing.T) {
	compareKeys(t, "", "a", strings.Repeat("long", 1000))
	compareKeys[customer](t, "a", "\x00\xff")
	compareKeys(t, 0, math.MaxInt, math.MinInt)
	compareKeys[uint](t, 0, math.MaxUint)
	compareKeys[uint64](t, 0, math.MaxUint64)
	compareKeys[int8](t, -128, 127)
	compareKeys[number32](t, -5, 5)
	compareKeys(t, true, false)
	compareKeys(t, 0.5, math.Inf(-1))
	compareKeys(t, [6]byte{1, 2, 3}, [6]byte{})
	compareKeys(t, vlans{1, 2}, vlans{2, 1})
	compareKeys(t, fiveTuple{Sport: 1}, fiveTuple{Dport: 1})
	compareKeys(t, struct{}{})
	compareKeys(t, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("::ffff:192.0.2.1"),
		netip.MustParseAddr("fe80::1%eth0"), netip.Addr{})
	compareKeys(t, netip.MustParsePrefix("2001:db8::/48"), netip.MustParsePrefix("2001:db8::/49"))
	compareKeys(t, custom{"a", "b"}, custom{"a", "c"})

	refuse := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	refuse(saveOne(t, hidden{1}),
		"keys of type meter.hidden cannot be saved: implement encoding.BinaryAppender")
	refuse(saveOne(t, oneWay{}), "keys of type meter.oneWay cannot be saved")
	refuse(saveOne[any](t, 1), "keys of type interface {} cannot be saved")
	refuse(saveOne(t, struct{ N int }{1}), "cannot be saved")
	refuse(saveOne(t, [1]*int{}), "cannot be saved")
	refuse(saveOne(t, custom{"", "b"}), "no name")
}

// saveOne returns the error of saving a table and shards with one key.
func saveOne[K comparable](t *testing.T, key K) error {
	p := compileProfile(t, TokenBucket{Rate: ByteRate(1), Burst: 1000})
	table, _ := NewTable[K](p, TableConfig{Keys: 1})
	table.Color(key, 0, 1, Green)
	b, err := table.AppendBinary([]byte("prefix"))
	if string(b) != "prefix" {
		t.Errorf("got %q with the error %v", b, err)
	}
	shards, _ := NewShards[K](p, TableConfig{Keys: 1}, 1)
	shards.Color(key, 0, 1, Green)
	if b, err := shards.AppendBinary([]byte("prefix")); err == nil || string(b) != "prefix" {
		t.Errorf("Shards: got %q with the error %v", b, err)
	}
	return err
}

// TestSavedKeyLengths has keys that are a byte too short or too long.
func TestSavedKeyLengths(t *testing.T) {
	for _, key := range []any{new(int), new(uint), new(uint16), new([6]byte), new(vlans), new(bool)} {
		good, err := appendKey(nil, key)
		if err != nil || !readKey(good, key) {
			t.Errorf("%T: got %v, want a key that can be read", key, err)
		}
		if readKey(good[1:], key) || readKey(append(good, 0), key) {
			t.Errorf("%T: a key of another length was read", key)
		}
	}
}
