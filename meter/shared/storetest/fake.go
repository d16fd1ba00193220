package storetest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Fake starts a server. Its replies are the bytes returned by answer, which may be wrong in form or
// in content. It answers the first commands of a client's connection itself. A nil answer closes
// the connection; an empty one leaves the client without an answer. Calls of answer can be
// concurrent. It returns the address.
func Fake(t testing.TB, answer func(command []string) []byte) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			serving.Go(func() {
				serveFake(c, answer)
				_ = c.Close()
				mu.Lock()
				delete(conns, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return listener.Addr().String()
}

func serveFake(c net.Conn, answer func([]string) []byte) {
	r := bufio.NewReader(c)
	for {
		command, err := readCommand(r)
		if err != nil {
			return
		}
		var reply []byte
		switch strings.ToUpper(command[0]) {
		case "HELLO":
			reply = []byte("-ERR unknown command\r\n")
		case "CLIENT", "SELECT", "AUTH", "READONLY", "ASKING":
			reply = []byte("+OK\r\n")
		default:
			if reply = answer(command); reply == nil {
				return
			}
		}
		if _, err := c.Write(reply); err != nil {
			return
		}
	}
}

// readCommand reads a command, which is a list of strings.
func readCommand(r *bufio.Reader) (command []string, err error) {
	length := func(kind byte) int {
		line, e := r.ReadString('\n')
		if e == nil && (len(line) < 4 || line[0] != kind) {
			e = fmt.Errorf("got %q instead of a command", line)
		}
		if err = e; err != nil {
			return 0
		}
		n, e := strconv.Atoi(strings.TrimSpace(line[1:]))
		err = e
		return n
	}
	n := length('*')
	for range n {
		text := make([]byte, length('$')+2)
		if err != nil {
			return nil, err
		}
		if _, err = io.ReadFull(r, text); err != nil {
			return nil, err
		}
		command = append(command, string(text[:len(text)-2]))
	}
	if err == nil && len(command) == 0 {
		err = fmt.Errorf("an empty command")
	}
	return command, err
}

// Encode encodes a reply: numbers, strings, nil, and lists of them. Other types
// are not supported.
func Encode(v any) []byte { return encode(nil, v) }

func encode(b []byte, v any) []byte {
	switch v := v.(type) {
	case int64:
		return fmt.Appendf(b, ":%d\r\n", v)
	case string:
		return fmt.Appendf(b, "$%d\r\n%s\r\n", len(v), v)
	case nil:
		return append(b, "$-1\r\n"...)
	case []any:
		b = fmt.Appendf(b, "*%d\r\n", len(v))
		for _, each := range v {
			b = encode(b, each)
		}
		return b
	}
	panic(fmt.Sprintf("cannot encode %T", v))
}
