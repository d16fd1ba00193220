package quota

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
)

// magic begins an encoded Ledger. It contains the version of the format.
const magic = "shaper quota 1\n"

// castagnoli detects damage in the encoding.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errVersion = errors.New("quota: the counts were written by another version, or are no counts")
	errDamaged = errors.New("quota: the counts are damaged")
)

// AppendBinary appends the Ledger: magic, the number of customers, for each its name with its
// length before it, Start, End, used bytes and last counters, and a CRC-32C of all that.
// Numbers are varints, except for the CRC. The error is always nil.
func (l *Ledger) AppendBinary(b []byte) ([]byte, error) {
	begin := len(b)
	b = append(b, magic...)
	b = binary.AppendUvarint(b, uint64(len(l.accounts)))
	for customer, a := range l.accounts {
		b = binary.AppendUvarint(b, uint64(len(customer)))
		b = append(b, customer...)
		b = binary.AppendVarint(b, a.Start)
		b = binary.AppendVarint(b, a.End)
		b = binary.AppendUvarint(b, a.used)
		for _, counter := range a.counters {
			b = binary.AppendUvarint(b, counter)
		}
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[begin:], castagnoli)), nil
}

// UnmarshalBinary replaces the Ledger by an encoded one. After an error the Ledger is as before.
func (l *Ledger) UnmarshalBinary(b []byte) error {
	body, ok := bytes.CutPrefix(b, []byte(magic))
	if !ok {
		return errVersion
	}
	end := len(b) - 4
	if end < len(magic) || crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
		return errDamaged
	}
	r := reader{rest: body[:len(body)-4]}
	n := r.uvarint()
	if n > uint64(len(b)) { // each customer takes several bytes
		return errDamaged
	}
	accounts := make(map[string]*account, n)
	for range n {
		customer := r.text()
		a := &account{Span: Span{r.varint(), r.varint()}, used: r.uvarint()}
		for i := range a.counters {
			a.counters[i] = r.uvarint()
		}
		accounts[customer] = a
	}
	if r.failed || len(r.rest) > 0 || uint64(len(accounts)) != n {
		return errDamaged
	}
	l.accounts = accounts
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
