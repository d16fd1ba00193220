package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// A saved customer consists of a byte, which is 1 if its meter counts packets, then its name and
// its meter. A varint with the length precedes each of the two.

var errSavedCustomers = errors.New("saved customers are damaged or truncated")

// AppendCustomers appends to b the meters of n customers from index at on, for RestoreCustomers.
// It leaves out customers without packets, and queues. Meters have checksums, names have none.
func (l *Pipeline) AppendCustomers(b []byte, at, n int) []byte {
	if l.customers == nil {
		return b
	}
	var saved []byte
	for i := at; i < min(at+n, len(l.customers.list)); i++ {
		c := &l.customers.list[i]
		if c.service == nil || c.paced() || !c.begun() {
			continue
		}
		saved, _ = c.AppendBinary(saved[:0]) // no error
		b = append(b, l.customers.unit())
		b = appendPart(b, []byte(l.customers.plan.Source.List[i].Name))
		b = appendPart(b, saved)
	}
	return b
}

// unit returns 1 if the meters count packets.
func (c *customers) unit() byte {
	if c.plan.Packets {
		return 1
	}
	return 0
}

func appendPart(b, part []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(part))), part...)
}

// RestoreCustomers restores the meters appended by AppendCustomers, by the names of customers,
// before the first packet. now is the time in ns on the clock of the packets, which continued
// since; no time of a meter becomes later than now. A customer with another plan keeps its tokens
// as with Inherit. After an error nothing changed.
func (l *Pipeline) RestoreCustomers(b []byte, now int64) error {
	if l.customers == nil {
		return nil
	}
	type restored struct {
		number uint32
		meter.Meter
	}
	var list []restored
	for len(b) > 0 {
		unit := b[0]
		name, rest, ok := cutPart(b[1:])
		saved, rest, complete := cutPart(rest)
		if !ok || !complete {
			return errSavedCustomers
		}
		b = rest
		number := l.customers.plan.Number(string(name))
		if number == 0 || l.customers.customer(number).paced() || unit != l.customers.unit() {
			continue
		}
		// Most meters have the parameters of their plan, which need not be compiled again.
		list = append(list, restored{number, meter.New(l.customers.customer(number).service.Profile)})
		if err := list[len(list)-1].UnmarshalBinary(saved); err != nil {
			return fmt.Errorf("saved customer %q: %w", name, err)
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

// cutPart returns the part appended by appendPart, and the rest.
func cutPart(b []byte) (part, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	return b[n : n+int(size)], b[n+int(size):], true
}
