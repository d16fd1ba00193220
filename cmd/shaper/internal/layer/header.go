package layer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/gopacket"
)

// header reads the fields of a header, and describes them as text.
type header struct {
	data []byte // the header and its payload
	bit  int    // number of bits read
	text strings.Builder
	err  error // the first error; later fields are 0 and not in the text
}

var errShort = errors.New("the packet ends within the header")

// fail reports a malformed header.
func (h *header) fail(format string, args ...any) {
	if h.err == nil {
		h.err = fmt.Errorf(format, args...)
	}
}

// left returns the number of unread bytes.
func (h *header) left() int { return len(h.data) - h.bit/8 }

// take reads up to 64 bits.
func (h *header) take(bits int) (v uint64) {
	if h.bit+bits > 8*len(h.data) {
		h.fail("%w", errShort)
	}
	if h.err != nil {
		return 0
	}
	for range bits {
		v = v<<1 | uint64(h.data[h.bit/8]>>(7-h.bit%8)&1)
		h.bit++
	}
	return v
}

// bytes reads n bytes.
func (h *header) bytes(n int) []byte {
	if n < 0 || n > h.left() {
		h.fail("%w", errShort)
	}
	if h.err != nil {
		return nil
	}
	at := h.bit / 8
	h.bit += 8 * n
	return h.data[at : at+n]
}

// put adds the text of a field.
func (h *header) put(name string, value any) {
	if h.err != nil {
		return
	}
	if h.text.Len() > 0 {
		h.text.WriteByte(' ')
	}
	fmt.Fprintf(&h.text, "%s=%v", name, value)
}

// num reads a number.
func (h *header) num(name string, bits int) int {
	v := h.take(bits)
	h.put(name, v)
	return int(v)
}

// flag reads a bit.
func (h *header) flag(name string) bool {
	v := h.take(1) == 1
	h.put(name, v)
	return v
}

// flags reads a flag for each name.
func (h *header) flags(names ...string) {
	for _, name := range names {
		h.flag(name)
	}
}

// enum reads a number and describes it by a name.
func (h *header) enum(name string, bits int, names map[int]string) int {
	v := int(h.take(bits))
	if text := names[v]; text != "" {
		h.put(name, text)
	} else {
		h.put(name, v)
	}
	return v
}

// protocol reads the number of the next protocol. It returns its decoder, or the payload's for a
// number outside of the table.
func (h *header) protocol(name string, bits int, table map[int]gopacket.LayerType) gopacket.Decoder {
	v := int(h.take(bits))
	if t, ok := table[v]; ok {
		h.put(name, t)
		return t
	}
	h.put(name, fmt.Sprintf("%#x", v))
	return gopacket.LayerTypePayload
}

// mac and ip read addresses.
func (h *header) mac(name string) { h.put(name, net.HardwareAddr(h.bytes(6))) }

func (h *header) ip(name string, n int) {
	a, _ := netip.AddrFromSlice(h.bytes(n))
	h.put(name, a)
}

// hex reads n bytes.
func (h *header) hex(name string, n int) {
	if b := h.bytes(n); len(b) > 0 {
		h.put(name, fmt.Sprintf("%x", b))
	}
}

// until reads options up to byte n of the header.
func (h *header) until(name string, n int) {
	if n < h.bit/8 {
		h.fail("a length of %d bytes is below the minimum of %d", n, h.bit/8)
	}
	h.hex(name, n-h.bit/8)
}

// limit limits the payload to n bytes; the rest is padding.
func (h *header) limit(n int) {
	if h.err == nil && n >= 0 && n < h.left() {
		h.data = h.data[:h.bit/8+n]
	}
}
