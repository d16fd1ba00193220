package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// This file holds the binary format of saved customers, format 2. All numbers are little-endian:
//
//	customers = "cst" format boot monotonic wall plans columns rows
//	plans     = count plan...
//	plan      = number parameter...        one parameter after another, in any order
//	parameter = name value
//	columns   = number name...             the order of the values in a row
//	rows      = count row...
//	row       = value...                   one for each column
//	name      = length character...
//	boot: 36 bytes; format, number, length: 1 byte; count: 4; monotonic, wall, value: 8
//
// Names are those of stateParameters and of savedCustomer.columns. A missing number is 0. The file
// around the customers holds a checksum.

const (
	savedMagic  = "cst" // format 1 begins with a hexadecimal digit
	savedFormat = 2
)

// errSaved reports unusable saved customers.
var errSaved = errors.New("cannot read saved customers")

var errSavedDamaged = fmt.Errorf("%w: damaged or truncated", errSaved)

func (s *savedCustomers) encode() []byte {
	b := append([]byte(savedMagic), savedFormat)
	b = append(b, s.boot[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.monotonic))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.wall))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.plans)))
	for i := range s.plans {
		list := stateParameters(&s.plans[i])
		b = append(b, byte(len(list)))
		for _, p := range list {
			b = binary.LittleEndian.AppendUint64(appendName(b, p.name), p.get())
		}
	}
	var c savedCustomer
	columns := c.columns()
	b = append(b, byte(len(columns)))
	for _, p := range columns {
		b = appendName(b, p.name)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.list)))
	b = slices.Grow(b, len(s.list)*len(columns)*8)
	for _, c = range s.list {
		for _, p := range columns {
			b = binary.LittleEndian.AppendUint64(b, p.get())
		}
	}
	return b
}

func appendName(b []byte, name string) []byte { return append(append(b, byte(len(name))), name...) }

// decodeCustomers decodes and validates saved customers of any format.
func decodeCustomers(b []byte) (s *savedCustomers, err error) {
	if bytes.HasPrefix(b, []byte(savedMagic)) {
		s, err = decodeFormat2(b[len(savedMagic):])
	} else {
		s, err = decodeFormat1(b)
	}
	if err != nil {
		return nil, err
	}
	for i := range s.plans {
		for _, b := range s.plans[i].Profile.Buckets {
			if b.Den == 0 || b.Size < 0 {
				return nil, errSavedDamaged
			}
		}
	}
	for i := range s.list {
		if s.list[i].ID == 0 || uint64(s.list[i].Plan) >= uint64(len(s.plans)) {
			return nil, errSavedDamaged
		}
	}
	return s, nil
}

// decodeFormat2 decodes the bytes behind savedMagic.
func decodeFormat2(b []byte) (*savedCustomers, error) {
	r := &savedReader{rest: b}
	if format := r.number(1); r.err == nil && format != savedFormat {
		return nil, fmt.Errorf("%w: they have format %d, this program reads formats 1 and %d", errSaved, format,
			savedFormat)
	}
	s := &savedCustomers{}
	copy(s.boot[:], r.next(len(s.boot)))
	s.monotonic, s.wall = int64(r.number(8)), int64(r.number(8))
	for n := r.number(4); n > 0 && r.err == nil; n-- {
		var plan bpf.ShaperPlan
		left := stateParameters(&plan)
		for n := r.number(1); n > 0 && r.err == nil; n-- {
			r.set(r.take(&left, "parameter"), r.number(8))
		}
		s.plans = append(s.plans, plan)
	}
	var c savedCustomer
	var columns []stateParameter
	left := c.columns()
	for n := r.number(1); n > 0 && r.err == nil; n-- {
		columns = append(columns, r.take(&left, "column"))
	}
	rows := r.number(4)
	if r.err == nil && (len(columns) == 0 && rows > 0 || uint64(len(r.rest)) != rows*uint64(len(columns))*8) {
		return nil, errSavedDamaged
	}
	for ; rows > 0 && r.err == nil; rows-- {
		for _, p := range columns {
			r.set(p, r.number(8))
		}
		s.list = append(s.list, c)
	}
	return s, r.err
}

// savedReader reads format 2. After an error it returns zeros.
type savedReader struct {
	rest []byte
	err  error
}

func (r *savedReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.rest = nil
}

// next returns the next n bytes, or nil after an error.
func (r *savedReader) next(n int) []byte {
	if n > len(r.rest) {
		r.fail(errSavedDamaged)
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

// number returns a number of some bytes.
func (r *savedReader) number(size int) uint64 {
	var b [8]byte
	copy(b[:], r.next(size))
	return binary.LittleEndian.Uint64(b[:])
}

// take reads a name. It removes the parameter of this name from a list, and returns it.
func (r *savedReader) take(left *[]stateParameter, noun string) (p stateParameter) {
	name := string(r.next(int(r.number(1))))
	i := slices.IndexFunc(*left, func(p stateParameter) bool { return p.name == name })
	switch {
	case r.err != nil:
	case i < 0:
		r.fail(fmt.Errorf("%w: the %s %q is unknown or repeated", errSaved, noun, name))
	default:
		p = (*left)[i]
		*left = slices.Delete(*left, i, i+1)
	}
	return p
}

func (r *savedReader) set(p stateParameter, n uint64) {
	if r.err == nil && !p.set(n) {
		r.fail(errSavedDamaged)
	}
}
