package quota

import (
	"encoding/binary"
	"errors"
	"math"
)

var errDamaged = errors.New("the counts are damaged")

// AppendBinary appends the Ledger: a byte with a bit for each known source, the number of
// customers, and for each its name with its length before it, Start, End, used bytes and last
// counters. Numbers are varints. There is no checksum. The error is always nil.
func (l *Ledger) AppendBinary(b []byte) ([]byte, error) {
	known := byte(0)
	for source, k := range l.known {
		if k {
			known |= 1 << source
		}
	}
	b = binary.AppendUvarint(append(b, known), uint64(len(l.accounts)))
	for customer, a := range l.accounts {
		b = binary.AppendUvarint(b, uint64(len(customer)))
		b = append(b, customer...)
		for _, n := range []int64{a.Start, a.End, a.used} {
			b = binary.AppendVarint(b, n)
		}
		for _, last := range a.last {
			b = binary.AppendVarint(binary.AppendVarint(b, last.All), last.Dropped)
		}
	}
	return b, nil
}

// UnmarshalBinary replaces the Ledger by an encoded one. After an error the Ledger is as before.
func (l *Ledger) UnmarshalBinary(b []byte) error {
	if len(b) == 0 || b[0] >= 1<<Sources {
		return errDamaged
	}
	next, r := New(), reader{rest: b[1:]}
	for source := range next.known {
		next.known[source] = b[0]&(1<<source) != 0
	}
	n := r.uvarint()
	if n > uint64(len(b)) { // each customer takes several bytes
		return errDamaged
	}
	for range n {
		a := next.account(r.text())
		a.Span, a.used = Span{r.varint(), r.varint()}, r.varint()
		for i := range a.last {
			a.last[i] = Counters{r.varint(), r.varint()}
		}
	}
	if r.failed || len(r.rest) > 0 || uint64(len(next.accounts)) != n {
		return errDamaged
	}
	*l = *next
	return nil
}

// reader reads an encoding. After an error all values are 0.
type reader struct {
	rest   []byte
	failed bool
}

// skip skips the n bytes of a number; n is not positive after an error.
func (r *reader) skip(n int) {
	if n <= 0 {
		r.rest, r.failed = nil, true
		return
	}
	r.rest = r.rest[n:]
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	r.skip(n)
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	r.skip(n)
	return v
}

func (r *reader) text() string {
	n := r.uvarint()
	if n > math.MaxInt32 || int(n) > len(r.rest) {
		r.skip(0)
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}
