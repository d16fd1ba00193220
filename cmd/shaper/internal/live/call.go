package live

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Processes call each other in the format of net/rpc: a header and a body in each direction, in
// gob. net/rpc itself is not used because it finds methods by reflection. A program with it keeps
// every exported method of every type: 8 MB more for shaper.

// callHeader is the header of a call and of its answer.
type callHeader struct {
	ServiceMethod string
	Seq           uint64
	Error         string // error of an answer, whose body is then empty
}

// servicePrefix is the beginning of all methods' names.
const servicePrefix = "control."

// methods are the methods served by a process, by name.
type methods map[string]func(in *gob.Decoder) (out any, err error)

// method converts a function for use in methods.
func method[In, Out any](f func(In, *Out) error) func(*gob.Decoder) (any, error) {
	return func(body *gob.Decoder) (any, error) {
		var in In
		if err := body.Decode(&in); err != nil {
			return nil, err
		}
		out := new(Out)
		return out, f(in, out)
	}
}

// serve answers calls, one after the other, until the caller closes the connection or sends
// anything but a call.
func (m methods) serve(conn net.Conn) {
	defer conn.Close()
	in, buffer := gob.NewDecoder(conn), bufio.NewWriter(conn)
	out := gob.NewEncoder(buffer)
	for {
		var head callHeader
		if in.Decode(&head) != nil {
			return
		}
		answer, err := m.call(head.ServiceMethod, in)
		if err != nil {
			head.Error, answer = err.Error(), struct{}{}
		}
		if errors.Join(out.Encode(head), out.Encode(answer), buffer.Flush()) != nil {
			return
		}
	}
}

func (m methods) call(name string, in *gob.Decoder) (any, error) {
	method, ok := m[strings.TrimPrefix(name, servicePrefix)]
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w %q", errNoMethod, name), in.DecodeValue(reflect.Value{}))
	}
	return method(in)
}

// caller calls the methods of another process. Concurrent calls wait for each other.
type caller struct {
	mu   sync.Mutex
	conn net.Conn
	in   *gob.Decoder
	out  *gob.Encoder
	sent *bufio.Writer
	seq  uint64
}

// errNoMethod reports that the other process, perhaps of another version, has no such method.
var errNoMethod = errors.New("no method")

// errProcessEnded reports that the other process ended before it answered.
var errProcessEnded = errors.New("the process has ended")

func newCaller(conn net.Conn) *caller {
	sent := bufio.NewWriter(conn)
	return &caller{conn: conn, in: gob.NewDecoder(conn), out: gob.NewEncoder(sent), sent: sent}
}

func (c *caller) Close() error { return c.conn.Close() }

// within sets a deadline: calls without an answer within d fail.
func (c *caller) within(d time.Duration) { _ = c.conn.SetDeadline(time.Now().Add(d)) }

// patiently removes the deadline.
func (c *caller) patiently() { _ = c.conn.SetDeadline(time.Time{}) }

// call calls a method and decodes the answer into out, a pointer. It returns the error of the
// method, errProcessEnded, or another error of the connection. After an error of the
// connection, the caller must not be used again.
func (c *caller) call(method string, in, out any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	err := errors.Join(c.out.Encode(callHeader{ServiceMethod: servicePrefix + method, Seq: c.seq}),
		c.out.Encode(in), c.sent.Flush())
	var head callHeader
	if err == nil {
		err = c.in.Decode(&head)
	}
	if err == nil && head.Error != "" {
		answer := errors.New(head.Error)
		for _, text := range []string{errNoMethod.Error(), "rpc: can't find"} { // of net/rpc
			if strings.HasPrefix(head.Error, text) {
				answer = fmt.Errorf("%w: %s", errNoMethod, head.Error)
			}
		}
		return errors.Join(answer, c.in.DecodeValue(reflect.Value{}))
	}
	if err == nil {
		err = c.in.Decode(out)
	}
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return errProcessEnded
		}
	}
	return err
}
