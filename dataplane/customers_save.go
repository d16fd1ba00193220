package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// savedCustomers begins saved customers. It contains the version of the format. Behind it are
// a byte that is 1 if the meters count packets, for each customer the length of its name, the name,
// the length of its meter and the meter, and the CRC-32 of all that. Lengths are varints.
const savedCustomers = "shaper meters 1\n"

var errSavedCustomers = errors.New("saved customers: written by another version, or damaged")

// SaveCustomers returns the meters of the customers that had packets, for RestoreCustomers; nil
// if there are no customers. It has no queues of customers.
func (l *Pipeline) SaveCustomers() []byte {
	if l.customers == nil {
		return nil
	}
	b := append([]byte(savedCustomers), 0)
	if l.customers.plan.Packets {
		b[len(savedCustomers)] = 1
	}
	var saved []byte
	for i := range l.customers.list {
		c := &l.customers.list[i]
		if c.paced() || !c.begun() {
			continue
		}
		saved, _ = c.AppendBinary(saved[:0]) // no error
		b = appendPart(b, []byte(l.customers.plan.Source.List[i].Name))
		b = appendPart(b, saved)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func appendPart(b, part []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(part))), part...)
}

// RestoreCustomers restores the meters that SaveCustomers returned, by the names of customers,
// before the first packet. now is the time in ns on the clock of the packets, which has continued
// since; no time of a meter becomes later than now. A customer with another plan keeps its
// tokens as with Inherit. After an error nothing has changed.
func (l *Pipeline) RestoreCustomers(b []byte, now int64) error {
	body, ok := bytes.CutPrefix(b, []byte(savedCustomers))
	if !ok || len(body) < 5 || crc32.ChecksumIEEE(b[:len(b)-4]) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return errSavedCustomers
	}
	packets, rest := body[0] == 1, body[1:len(body)-4]
	if l.customers == nil || packets != l.customers.plan.Packets {
		return nil
	}
	type restored struct {
		number uint32
		meter.Meter
	}
	var list []restored
	for len(rest) > 0 {
		var name, saved []byte
		if name, rest, ok = cutPart(rest); ok {
			saved, rest, ok = cutPart(rest)
		}
		if !ok {
			return errSavedCustomers
		}
		number := l.customers.plan.Number(string(name))
		if number == 0 || l.customers.customer(number).paced() {
			continue
		}
		list = append(list, restored{number: number})
		if list[len(list)-1].UnmarshalBinary(saved) != nil {
			return errSavedCustomers
		}
	}
	l.now = max(l.now, now) // so that Inherit takes over the meters
	for i := range list {
		c := l.customers.customer(list[i].number)
		c.Meter = list[i].Clone()
		c.Shift(now, 0)
		c.SetProfile(now, c.service.Profile)
		c.restored = true
	}
	return nil
}

// cutPart returns what appendPart appended, and the rest.
func cutPart(b []byte) (part, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	return b[n : n+int(size)], b[n+int(size):], true
}
