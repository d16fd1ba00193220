package meter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"slices"
	"sync"
	"time"
)

// This file defines the binary format of meters, format 2. All numbers are little-endian:
//
//	meter     = "mtr" format profile state crc
//	profile   = length name-of-kind count parameter...     one parameter after another, in any order
//	parameter = length name value
//	value     = 8 bytes; of a Rate 16: Bytes, and then Period
//	state     = epoch first second [entries slot n slot n ...]
//	format, length, count: 1 byte; epoch, first, second, slot, n: 8; entries: 4
//	crc       = CRC-32C of all bytes before it, 4 bytes
//
// Names of kinds and parameters are those of KindInfo. Missing parameters have their defaults. Only
// kinds with a log have entries, from the oldest to the newest. save_table.go defines the format of
// tables.
//
// Format 1, which is only read, has no counts and no names of parameters:
//
//	profile = length name-of-kind value...                 in the order of paramsOfFormat1

const (
	savedMeter  = "mtr"
	savedTable  = "mtt"
	savedFormat = 2 // the format of new data
	oldFormat   = 1 // is also read
)

// paramsOfFormat1 lists the parameters of each kind in the order of format 1. Later kinds and
// parameters are not in it.
func paramsOfFormat1(kind string) []string {
	switch kind {
	case "token-bucket", "gcra":
		return []string{"rate", "burst", "warmup", "gcra"}
	case "srtcm":
		return []string{"cir", "cbs", "ebs"}
	case "trtcm":
		return []string{"cir", "cbs", "pir", "pbs"}
	case "trtcm4115":
		return []string{"cir", "cbs", "eir", "ebs", "coupling"}
	case "fixed-window", "sliding-counter":
		return []string{"limit", "window"}
	case "sliding-window":
		return []string{"limit", "window", "slots"}
	case "sliding-log":
		return []string{"limit", "window", "entries"}
	case "tswtcm":
		return []string{"cir", "pir", "window", "seed"}
	}
	return nil
}

// castagnoli is made at its first use, in 0.15 ms.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

var errCorrupt = errors.New("saved state is corrupt or truncated")

// AppendBinary appends the meter to b: its parameters, its exact state and a checksum. It
// implements encoding.BinaryAppender. The error is always nil.
//
// See Shift if the meter is restored on a new clock.
func (m *Meter) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	b = append(b, savedMeter...)
	b = append(b, savedFormat)
	b = m.profile.made().appendParams(b)
	b = m.profile.appendState(b, m.state, m.profile.log)
	return appendChecksum(b, start), nil
}

// UnmarshalBinary restores a meter saved by AppendBinary, with its parameters, even if an earlier
// version saved it: parameters unknown to that version have their defaults. From then on it returns
// what the saved meter would have returned. It implements encoding.BinaryUnmarshaler. The meter may
// be the zero Meter. If its parameters are the same, it keeps its Profile. To go on with other
// parameters, call SetProfile next.
//
// The error says whether the data are of another format, corrupt, or have a parameter unknown to
// this version. Then nothing changes. A Reservation from before cannot be canceled any more.
func (m *Meter) UnmarshalBinary(data []byte) error {
	r := openSaved(data, savedMeter)
	p := r.profile(m.profile)
	s, log := r.state(p)
	if err := r.close(); err != nil {
		return err
	}
	if p != m.profile {
		p = p.withLog()
	}
	copy(p.log, log)
	m.profile, m.state = p, s
	return nil
}

func appendChecksum(b []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli()))
}

// appendParams appends the kind and the parameters.
func (p *Profile) appendParams(b []byte) []byte {
	kind, params := &kinds[p.kind], reflect.ValueOf(p.params)
	b = appendName(b, kind.Name)
	b = append(b, byte(len(kind.Required)+len(kind.Optional)))
	for _, names := range [...][]string{kind.Required, kind.Optional} {
		for _, name := range names {
			b = appendValue(appendName(b, name), field(params, name))
		}
	}
	return b
}

func appendName(b []byte, name string) []byte { return append(append(b, byte(len(name))), name...) }

// appendValue appends the value of a parameter.
func appendValue(b []byte, v reflect.Value) []byte {
	var n uint64
	switch {
	case v.Type() == reflect.TypeFor[Rate]():
		rate := v.Interface().(Rate)
		b = binary.LittleEndian.AppendUint64(b, uint64(rate.Bytes))
		n = uint64(rate.Period)
	case v.CanUint():
		n = v.Uint()
	case v.CanInt():
		n = uint64(v.Int())
	case v.Bool():
		n = 1
	}
	return binary.LittleEndian.AppendUint64(b, n)
}

// appendState appends the state of a meter and the used entries of its log.
func (p *Profile) appendState(b []byte, s state, log []entry) []byte {
	first, used := 0, 0
	switch r := p.rule.(type) {
	case slidingLog:
		first, used = int(s.second>>32), inUse(&s)
		s.second = int64(used) // the saved log begins with its oldest entry
	case wide:
		if s.epoch != notBegun {
			used = r.entries()
		}
	}
	for _, word := range [...]int64{s.epoch, s.first, s.second} {
		b = binary.LittleEndian.AppendUint64(b, uint64(word))
	}
	if p.entries() == 0 {
		return b
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(used))
	for i := range used {
		e := log[(first+i)%p.entries()]
		b = binary.LittleEndian.AppendUint64(b, uint64(e.slot))
		b = binary.LittleEndian.AppendUint64(b, uint64(e.n))
	}
	return b
}

// savedReader reads what AppendBinary wrote. After an error it returns zeros.
type savedReader struct {
	rest   []byte
	format byte
	log    []entry // of the latest state
	err    error
}

// openSaved checks the format and the checksum.
func openSaved(data []byte, magic string) *savedReader {
	const head, sum = len(savedMeter) + 1, 4
	r := &savedReader{}
	switch {
	case len(data) < head+sum || string(data[:len(magic)]) != magic:
		r.err = errors.New("not a saved " +
			map[string]string{savedMeter: "meter", savedTable: "table"}[magic])
	case data[len(magic)] != savedFormat && data[len(magic)] != oldFormat:
		r.err = fmt.Errorf("saved state has format %d, this program reads formats %d and %d",
			data[len(magic)], oldFormat, savedFormat)
	case binary.LittleEndian.Uint32(data[len(data)-sum:]) != crc32.Checksum(data[:len(data)-sum],
		castagnoli()):
		r.err = errCorrupt
	default:
		r.format, r.rest = data[len(magic)], data[head:len(data)-sum]
	}
	return r
}

// close returns the first error, also if there are bytes left.
func (r *savedReader) close() error {
	if len(r.rest) > 0 {
		r.fail(errCorrupt)
	}
	return r.err
}

func (r *savedReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.rest = nil
}

// next returns the next n bytes, or nil after an error.
func (r *savedReader) next(n int) []byte {
	if n > len(r.rest) || n < 0 {
		r.fail(errCorrupt)
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *savedReader) uint32() uint32 {
	if b := r.next(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *savedReader) int64() int64 {
	if b := r.next(8); b != nil {
		return int64(binary.LittleEndian.Uint64(b))
	}
	return 0
}

func (r *savedReader) name() string {
	if n := r.next(1); n != nil {
		return string(r.next(int(n[0])))
	}
	return ""
}

// profile reads and compiles parameters. If those of like are the same, it returns like.
func (r *savedReader) profile(like *Profile) *Profile {
	name := r.name()
	k := slices.IndexFunc(kinds[:], func(k KindInfo) bool { return k.Name == name })
	if k < 0 {
		r.fail(fmt.Errorf("saved meter has the unknown kind %q", name))
		return nil
	}
	v := reflect.New(reflect.TypeOf(kinds[k].Defaults)).Elem()
	v.Set(reflect.ValueOf(kinds[k].Defaults))
	if r.format == oldFormat {
		for _, name := range paramsOfFormat1(name) {
			r.value(field(v, name))
		}
	} else {
		r.params(v, &kinds[k])
	}
	params := v.Interface().(Params)
	if like != nil && like.params == params {
		return like
	}
	p, err := params.Profile()
	switch {
	case r.err != nil:
		return nil
	case err != nil:
		r.fail(fmt.Errorf("saved parameters are invalid: %w", err))
	case p.kind != Kind(k):
		r.fail(errCorrupt)
	}
	return p
}

// params reads the parameters of a kind into a struct with its defaults.
func (r *savedReader) params(v reflect.Value, kind *KindInfo) {
	count := r.next(1)
	if count == nil {
		return
	}
	left := slices.Concat(kind.Required, kind.Optional)
	for range count[0] {
		name := r.name()
		i := slices.Index(left, name)
		switch {
		case r.err != nil:
			return
		case i < 0:
			r.fail(fmt.Errorf("saved meter of kind %s has the parameter %q, which is unknown or repeated",
				kind.Name, name))
			return
		}
		left = slices.Delete(left, i, i+1)
		r.value(field(v, name))
	}
}

// value reads the value of a parameter.
func (r *savedReader) value(v reflect.Value) {
	if rate, ok := v.Addr().Interface().(*Rate); ok {
		*rate = Rate{Bytes: r.int64(), Period: time.Duration(r.int64())}
		return
	}
	switch n := r.int64(); {
	case v.CanUint():
		v.SetUint(uint64(n))
	case v.CanInt() && v.OverflowInt(n):
		r.fail(errCorrupt)
	case v.CanInt():
		v.SetInt(n)
	default:
		v.SetBool(n != 0)
	}
}

// state reads the state of a meter with a profile. The log is valid until the next call.
func (r *savedReader) state(p *Profile) (s state, log []entry) {
	s = state{r.int64(), r.int64(), r.int64()}
	if r.err != nil {
		return s, nil
	}
	r.log = r.log[:0]
	if p.entries() > 0 {
		for n := r.uint32(); n > 0 && r.err == nil; n-- {
			r.log = append(r.log, entry{r.int64(), r.int64()})
		}
	}
	if !p.validState(s, r.log) {
		r.fail(errCorrupt)
	}
	return s, r.log
}

// validState reports whether a state is within the bounds on which the arithmetic relies.
func (p *Profile) validState(s state, log []entry) bool {
	if p.rule != nil {
		return s.epoch != longAgo && len(log) <= p.entries() && p.rule.valid(s, log)
	}
	const most = maxGained + maxUnits
	return min(s.first, s.second) >= 0 && s.first <= most && s.second <= most
}
