package image

import (
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// formatCustomers has another value in each parameter and each column.
func formatCustomers() *savedCustomers {
	s := &savedCustomers{
		boot: [36]byte([]byte("01234567-89ab-cdef-0123-456789abcdef")), monotonic: 71, wall: 72,
		plans: []bpf.ShaperPlan{{
			Paced: 1,
			Profile: bpf.ShaperProfile{
				Buckets: [2]bpf.ShaperBucket{
					{Num: 11, Den: 12, Size: 13, Over: 14, Full: 15},
					{Num: 21, Den: 22, Size: 23, Over: 24, Full: 25},
				},
				Horizon: 31, Window: 32, Coupled: 33, Peak: 34, Excess: 35, Limit: 36, Sliding: 37,
			},
		}},
		list: []savedCustomer{
			{ID: 51, Plan: 0, Word: [2]uint64{52, 53}, Stamp: 54, Queue: [3]uint64{55, 56, 57}},
			{ID: 61, Plan: 0, Word: [2]uint64{62, 63}, Stamp: 64, Queue: [3]uint64{65, 66, 67}},
		},
	}
	q := &s.plans[0].Queue
	q.Paces[0] = bpf.ShaperPace{Ns: 41, Rest: 42, Den: 43}
	q.Time, q.Target, q.Interval, q.Ecn = 44, 45, 46, 47
	return s
}

// savedText writes the parts of format 2: a string is a name with its length, a byte a number of 1
// byte, an int32 one of 4, and an int one of 8.
func savedText(parts ...any) []byte {
	var b []byte
	for _, part := range parts {
		switch v := part.(type) {
		case string:
			b = append(append(b, byte(len(v))), v...)
		case byte:
			b = append(b, v)
		case int32:
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		case int:
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
	}
	return b
}

// The parts of formatCustomers.
var (
	formatHead = append([]byte("cst\x0201234567-89ab-cdef-0123-456789abcdef"), savedText(71, 72, int32(1))...)

	formatPlan = []any{
		"paced", 1, "c-num", 11, "c-den", 12, "c-size", 13, "c-over", 14, "c-full", 15,
		"e-num", 21, "e-den", 22, "e-size", 23, "e-over", 24, "e-full", 25,
		"horizon", 31, "window", 32, "coupled", 33, "peak", 34, "excess", 35, "limit", 36, "sliding", 37,
		"pace-ns", 41, "pace-rest", 42, "pace-den", 43,
		"codel-time", 44, "codel-target", 45, "codel-interval", 46, "codel-ecn", 47,
	}

	formatColumns = []any{
		"id", "plan", "word-c", "word-e", "stamp", "codel-drop-next", "codel-counts", "codel-flags",
	}

	formatRows = []any{int32(2), 51, 0, 52, 53, 54, 55, 56, 57, 61, 0, 62, 63, 64, 65, 66, 67}
)

// formatBytes joins formatHead with a plan, columns and rows.
func formatBytes(plan, columns, rows []any) []byte {
	b := append([]byte(nil), formatHead...)
	b = append(append(b, byte(len(plan)/2)), savedText(plan...)...)
	b = append(append(b, byte(len(columns))), savedText(columns...)...)
	return append(b, savedText(rows...)...)
}

// TestSavedFormat compares the bytes of saved customers with the format, and decodes them.
func TestSavedFormat(t *testing.T) {
	s, b := formatCustomers(), formatBytes(formatPlan, formatColumns, formatRows)
	if got := s.encode(); string(got) != string(b) {
		t.Errorf("got  %q\nwant %q", got, b)
	}
	if got, err := decodeCustomers(b); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("got %+v and %v, want %+v", got, err, s)
	}
	for n := range b {
		if _, err := decodeCustomers(b[:n]); !errors.Is(err, errSaved) {
			t.Errorf("%d of %d bytes: got %v", n, len(b), err)
		}
	}
}

// TestSavedOrder decodes parameters and columns in another order, with some missing.
func TestSavedOrder(t *testing.T) {
	got, err := decodeCustomers(formatBytes(
		[]any{"e-den", 3, "c-size", 4000, "c-den", 2},
		[]any{"word-e", "id", "plan"}, []any{int32(2), 7, 51, 0, 8, 61, 0}))
	want := &savedCustomers{plans: make([]bpf.ShaperPlan, 1)}
	want.boot, want.monotonic, want.wall = formatCustomers().boot, 71, 72
	buckets := &want.plans[0].Profile.Buckets
	buckets[0].Den, buckets[0].Size, buckets[1].Den = 2, 4000, 3
	want.list = []savedCustomer{{ID: 51, Word: [2]uint64{1: 7}}, {ID: 61, Word: [2]uint64{1: 8}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v and %v, want %+v", got, err, want)
	}
}

// TestSavedRefused decodes bytes that other versions might write, and damaged ones.
func TestSavedRefused(t *testing.T) {
	later := formatBytes(formatPlan, formatColumns, formatRows)
	later[3] = 3
	plan := func(more ...any) []byte {
		return formatBytes(append(append([]any(nil), formatPlan...), more...), formatColumns, formatRows)
	}
	least := []any{"c-den", 1, "e-den", 1}
	for _, test := range []struct {
		b    []byte
		want string
	}{
		{later, "format 3, this program reads formats 1 and 2"},
		{plan("priority", 5), `parameter "priority" is unknown or repeated`},
		{plan("peak", 5), `parameter "peak" is unknown or repeated`},
		{formatBytes(least, []any{"id", "plan", "color"}, []any{int32(1), 51, 0, 1}), `column "color" is unknown`},
		{formatBytes(least, []any{"id", "id"}, []any{int32(1), 51, 51}), `column "id" is unknown or repeated`},
		{formatBytes(append(least, "peak", 256), []any{"id"}, []any{int32(1), 51}), "damaged"},
		{formatBytes(least, []any{"id", "plan"}, []any{int32(1), 51, 1}), "damaged"},
		{formatBytes(least, []any{"id", "plan"}, []any{int32(1), 51, 1 << 32}), "damaged"},
		{formatBytes(least, []any{"id", "plan"}, []any{int32(1), 0, 0}), "damaged"},
		{formatBytes(least, []any{"id"}, []any{int32(1), 51, 52}), "damaged"},
		{formatBytes(least, nil, []any{int32(1 << 30)}), "damaged"},
		{formatBytes([]any{"c-den", 1}, []any{"id"}, []any{int32(1), 51}), "damaged"},
		{formatBytes(append(least, "c-size", -1), []any{"id"}, []any{int32(1), 51}), "damaged"},
		{append(format1Bytes(), 0), "damaged"},
		{format1Bytes()[:500], "damaged"},
	} {
		_, err := decodeCustomers(test.b)
		if !errors.Is(err, errSaved) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want %q", err, test.want)
		}
	}
}

// format1Bytes is formatCustomers in format 1. Parts of the plan that are not read are 255.
func format1Bytes() []byte {
	b := append([]byte("01234567-89ab-cdef-0123-456789abcdef"),
		savedText(71, 72, int32(1), int32(2), int32(376))...)
	plan := make([]byte, 376)
	for i := range plan {
		plan[i] = 255
	}
	for at, n := range map[int]uint64{
		8: 11, 16: 12, 24: 13, 32: 14, 40: 15, 48: 21, 56: 22, 64: 23, 72: 24, 80: 25, // buckets
		88: 31, 96: 32, // horizon, window
		112: 41, 120: 42, 128: 43, // pace
		160: 44, 200: 45, 208: 46, // time, target, interval
	} {
		binary.LittleEndian.PutUint64(plan[at:], n)
	}
	for at, n := range map[int]byte{3: 1, 104: 33, 105: 34, 106: 35, 107: 36, 108: 37, 301: 47} {
		plan[at] = n
	}
	b = append(b, plan...)
	b = append(b, savedText(51, int32(0), 52, 53, 54, 55, 56, 57)...)
	return append(b, savedText(61, int32(0), 62, 63, 64, 65, 66, 67)...)
}

// TestSavedFormat1 decodes the bytes of an earlier version.
func TestSavedFormat1(t *testing.T) {
	b := format1Bytes()
	if got, err := decodeCustomers(b); err != nil || !reflect.DeepEqual(got, formatCustomers()) {
		t.Errorf("got %+v and %v, want %+v", got, err, formatCustomers())
	}
	for n := range b {
		if _, err := decodeCustomers(b[:n]); !errors.Is(err, errSaved) {
			t.Errorf("%d of %d bytes: got %v", n, len(b), err)
		}
	}
	binary.LittleEndian.PutUint32(b[60:], 384)
	if _, err := decodeCustomers(b); !errors.Is(err, errSaved) ||
		!strings.Contains(err.Error(), "written by another version") {
		t.Errorf("plans of 384 bytes: got %v", err)
	}
}

// TestBacklogOfCustomer checks that the names of the columns are those of the state of a queue: a
// customer's words are a bpf.ShaperBacklog in the programs. Other offsets need other names.
func TestBacklogOfCustomer(t *testing.T) {
	var c bpf.ShaperCustomer
	var b bpf.ShaperBacklog
	got := []uintptr{
		unsafe.Offsetof(b.Next), unsafe.Offsetof(b.Frac), unsafe.Offsetof(b.FirstAbove),
		unsafe.Offsetof(b.DropNext), unsafe.Offsetof(b.Count), unsafe.Offsetof(b.LastCount) - 4,
		unsafe.Offsetof(b.Begun), unsafe.Offsetof(b.Above) - 1, unsafe.Offsetof(b.Dropping) - 2,
		unsafe.Offsetof(b.Version) - 4,
	}
	word, queue := unsafe.Offsetof(c.Word), unsafe.Offsetof(c.Queue)
	want := []uintptr{
		word, word + 8, unsafe.Offsetof(c.Stamp), queue, queue + 8, queue + 8, queue + 16, queue + 16,
		queue + 16, queue + 16,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got offsets %d, want %d", got, want)
	}
}
