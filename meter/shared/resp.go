package shared

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// Limits of one reply of a server. The client library trusts the lengths in a reply and
// allocates memory for them before the data arrives. The longest replies of use are that of ShowBudget, with
// lease.MaxHosts hosts of 21 values, and CLUSTER SLOTS: 16,384 ranges of 28 values if each has 5
// nodes.
const (
	maxReply  = 8 << 20 // bytes
	maxValues = 1 << 20 // values in all lists
	maxDepth  = 16      // lists in lists; COMMAND nests 8
	maxLine   = 4 << 10 // bytes of a line, such as an error or a length
)

// checkedConn is a connection to a server. Its Read fails before it returns a byte of a reply above
// the limits.
type checkedConn struct {
	net.Conn
	resp respReader
}

// checkedSocket is a checkedConn. The client library can test whether it is alive.
type checkedSocket struct {
	*checkedConn
	syscall.Conn
}

func newCheckedConn(c net.Conn) net.Conn {
	checked := &checkedConn{Conn: c}
	if socket, ok := c.(syscall.Conn); ok {
		return checkedSocket{checked, socket}
	}
	return checked // TLS
}

func (c *checkedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if wrong := c.resp.check(b[:n]); wrong != nil {
		return 0, wrong
	}
	return n, err
}

// respReader follows the structure of replies in RESP2 or RESP3.
type respReader struct {
	line   []byte  // the line so far
	skip   int     // bytes of a string that follow, with its line end
	lists  []int64 // number of values still to come, of each list around the next value
	size   int     // bytes of the reply so far
	values int64   // values of all its lists
	err    error
}

// check follows the next bytes. After an error it returns that error.
func (r *respReader) check(b []byte) error {
	for len(b) > 0 && r.err == nil {
		if r.skip > 0 {
			n := min(r.skip, len(b))
			r.skip, r.size, b = r.skip-n, r.size+n, b[n:]
			if r.skip == 0 {
				r.ended()
			}
			continue
		}
		n := bytes.IndexByte(b, '\n') + 1
		line := b[:n]
		if n == 0 {
			line = b
		}
		if len(r.line)+len(line) > maxLine {
			r.fail("a line of more than %d bytes", maxLine)
			break
		}
		if r.size += len(line); r.size > maxReply {
			r.fail("more than %d bytes", maxReply)
			break
		}
		b = b[len(line):]
		if n == 0 {
			r.line = append(r.line, line...)
			break
		}
		if len(r.line) > 0 {
			line = append(r.line, line...)
			r.line = line[:0]
		}
		r.begun(bytes.TrimRight(line, "\r\n"))
	}
	return r.err
}

func (r *respReader) fail(format string, args ...any) {
	r.err = fmt.Errorf("the store replied with "+format, args...)
	r.line = nil
}

// begun follows a line: a value, or the length of one.
func (r *respReader) begun(line []byte) {
	if len(line) == 0 {
		r.ended()
		return
	}
	each := int64(1) // values for each entry of a list
	switch line[0] {
	case '$', '=':
		r.text(line, maxReply-int64(r.size)-2)
		return
	case '!':
		r.text(line, maxLine)
		return
	case '%':
		each = 2
	case '|': // attributes stand before a value, and are no value
		each = 2
		r.add(1)
	case '*', '~', '>':
	default:
		r.ended()
		return
	}
	n, ok := r.length(line, maxValues/each)
	if !ok || n <= 0 {
		r.ended()
		return
	}
	if r.values += n * each; r.values > maxValues {
		r.fail("more than %d values", maxValues)
		return
	}
	if len(r.lists) == maxDepth {
		r.fail("lists in more than %d lists", maxDepth)
		return
	}
	r.lists = append(r.lists, n*each)
}

// text follows the length of a string.
func (r *respReader) text(line []byte, most int64) {
	if n, ok := r.length(line, most); ok && n >= 0 {
		r.skip = int(n) + 2
		return
	}
	r.ended() // null
}

// length parses the length after a line's type.
func (r *respReader) length(line []byte, most int64) (int64, bool) {
	n, err := strconv.ParseInt(string(line[1:]), 10, 64)
	if err != nil || n < -1 || n > most {
		r.fail("a length of %.20q, more than %d", line[1:], most)
		return 0, false
	}
	return n, true
}

// add adds values to the list around the next one.
func (r *respReader) add(n int64) {
	if len(r.lists) > 0 {
		r.lists[len(r.lists)-1] += n
	}
}

// ended handles the end of a value. It may also be the end of lists and of the reply.
func (r *respReader) ended() {
	for len(r.lists) > 0 {
		if r.add(-1); r.lists[len(r.lists)-1] > 0 {
			return
		}
		r.lists = r.lists[:len(r.lists)-1]
	}
	r.size, r.values = 0, 0
}
