package shared

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// stubConn is a connection from which a text can be read.
type stubConn struct {
	net.Conn
	io.Reader
}

func (c stubConn) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// readAll reads a text through a connection that checks it.
func readAll(text string, wrap func(io.Reader) io.Reader) error {
	got, err := io.ReadAll(newCheckedConn(stubConn{Reader: wrap(strings.NewReader(text))}))
	if err == nil && string(got) != text {
		err = errors.New("other bytes")
	}
	return err
}

// TestReplyLimits sends replies below and above each limit, at once and byte by
// byte. The error must come before the client library could allocate memory by a
// length in the reply.
func TestReplyLimits(t *testing.T) {
	t.Parallel()
	repeat := strings.Repeat
	// CLUSTER SLOTS of a cluster with a range for each slot, at a primary and four replicas.
	slots := "*7\r\n:16383\r\n:16383\r\n" +
		repeat("*4\r\n$9\r\n10.0.0.10\r\n:6379\r\n$40\r\n"+repeat("a", 40)+"\r\n*0\r\n", 5)
	for name, row := range map[string]struct{ text, want string }{
		"numbers and nulls":      {":1\r\n+OK\r\n$-1\r\n*-1\r\n_\r\n#t\r\n,1.5\r\n(12345678901234567890\r\n*0\r\n%0\r\n", ""},
		"error":                  {"-ERR no\r\n!5\r\nERR x\r\n", ""},
		"string":                 {"$5\r\na\r\nbc\r\n:1\r\n", ""},
		"many replies":           {repeat("*2\r\n:1\r\n$3\r\nabc\r\n", maxValues/2+1), ""},
		"most values":            {"*2\r\n:1\r\n*1048574\r\n" + repeat(":1\r\n", 1048574), ""},
		"a cluster's slots":      {"*16384\r\n" + repeat(slots, 16384), ""},
		"too many values":        {"*2\r\n:1\r\n*1048575\r\n", "more than 1048576 values"},
		"too many in a map":      {"%524289\r\n", `a length of "524289", more than 524288`},
		"deepest":                {repeat("*1\r\n", maxDepth) + ":1\r\n", ""},
		"too deep":               {repeat("*1\r\n", maxDepth+1) + ":1\r\n", "lists in more than 16 lists"},
		"deep but done":          {repeat("*1\r\n*1\r\n*1\r\n:1\r\n", 20), ""},
		"attributes":             {repeat("|1\r\n+a\r\n:1\r\n*2\r\n|1\r\n+a\r\n:1\r\n:1\r\n:2\r\n", maxDepth+1), ""},
		"huge string":            {"$536870912\r\nAAAA", `a length of "536870912", more than 8388`},
		"huge string in a list":  {"*1\r\n$8388608\r\nAAAA", `a length of "8388608", more than 8388`},
		"many strings":           {"*3\r\n" + repeat("$4000000\r\n"+repeat("a", 4_000_000)+"\r\n", 3), "a length of"},
		"huge list":              {"*1000000000\r\n", `a length of "1000000000", more than 1048576`},
		"huge set":               {"~9223372036854775807\r\n", "a length of"},
		"huge push":              {">9223372036854775808\r\n", "a length of"},
		"huge attribute":         {"|600000\r\n", "a length of"},
		"huge verbatim string":   {"=99999999\r\n", "a length of"},
		"huge error":             {"!4097\r\n", `a length of "4097", more than 4096`},
		"long line":              {"-ERR " + repeat("A", maxLine-8) + "\r\n" + ":1\r\n", ""},
		"longer line":            {"-ERR " + repeat("A", maxLine) + "\r\n", "a line of more than 4096 bytes"},
		"line without end":       {"+" + repeat("A", 5_000_000), "a line of more than 4096 bytes"},
		"negative length":        {"$-2\r\n", `a length of "-2"`},
		"streamed":               {"$?\r\n", `a length of "?"`},
		"no length":              {"*\r\n", `a length of ""`},
		"many lines in one list": {"*200000\r\n" + repeat("+"+repeat("A", 4000)+"\r\n", 3000), "more than 8388608 bytes"},
	} {
		for _, wrap := range []func(io.Reader) io.Reader{
			iotest.DataErrReader, func(r io.Reader) io.Reader { return iotest.OneByteReader(r) },
		} {
			err := readAll(row.text, wrap)
			if row.want == "" && err != nil || row.want != "" &&
				(err == nil || !strings.Contains(err.Error(), "the store replied with "+row.want)) {
				t.Errorf("%s: got %v, want %q", name, err, row.want)
			}
		}
	}
}

// TestReplyLimitsPass sends random replies within the limits in random pieces.
// Each must pass.
func TestReplyLimitsPass(t *testing.T) {
	t.Parallel()
	l := liar{rand.New(rand.NewPCG(5, 6))}
	var text []byte
	for range 2000 {
		reply, _ := l.wrong()
		text = append(text, storetest.Encode([]any{reply, reply})...)
	}
	if err := readAll(string(text),
		func(r io.Reader) io.Reader { return randomReader{r, l.Rand} }); err != nil {
		t.Error(err)
	}
}

type randomReader struct {
	io.Reader
	*rand.Rand
}

func (r randomReader) Read(b []byte) (int, error) {
	return r.Reader.Read(b[:min(len(b), 1+r.IntN(200))])
}
