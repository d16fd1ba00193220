package remote

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/process"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// DefaultSocket is the socket asked by users who cannot look at the kernel, if it exists.
const DefaultSocket = "/run/shaper.sock"

// Flag is the flag --control of commands.
type Flag struct {
	path  string
	given func() bool
}

// Add adds the flag to a command.
func (f *Flag) Add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.path, "control", "",
		"ask the process with the control socket `SOCKET`, without root (without CAP_SYS_ADMIN by default "+DefaultSocket+")")
	f.given = func() bool { return cmd.Flags().Changed("control") }
}

// Client returns a client of the socket; nil if the command must look at the kernel itself.
func (f *Flag) Client() (*Client, error) {
	switch {
	case f.given() && f.path == "":
		return nil, cli.Usagef("--control is empty: want the path of a control socket, such as %s", DefaultSocket)
	case f.given():
		return newClient(f.path), nil
	case process.CanLook():
		return nil, nil
	}
	if _, err := os.Stat(DefaultSocket); err != nil {
		return nil, nil
	}
	return newClient(DefaultSocket), nil
}

// Refuse returns an error if a client is given with flags that it cannot pass on: those that were changed.
func (c *Client) Refuse(cmd *cobra.Command, why string, names ...string) error {
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return cli.Usagef("--%s does not work through the control socket %s: %s", name, say.Printable(c.path), why)
		}
	}
	return nil
}

// Client sends requests to a control socket.
type Client struct{ path string }

func newClient(path string) *Client { return &Client{path} }

// answerTime is longer than the server takes to answer.
const answerTime = 90 * time.Second

// answer is an answer of the server.
type answer struct {
	body    []byte
	warning string // a problem of a change that was made; "": none
}

// refusedError is an error that the server answered, with a line for each interface.
type refusedError struct {
	status int
	lines  []error
}

func (e *refusedError) Error() string   { return errors.Join(e.lines...).Error() }
func (e *refusedError) Unwrap() []error { return e.lines }

// ask sends a request, with a body as JSON unless it is nil, and returns the answer.
func (c *Client) ask(
	ctx context.Context, method, path string, query url.Values, body any,
) (out answer, err error) {
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return out, err
		}
		in = bytes.NewReader(text)
	}
	u, err := url.Parse("http://shaper" + path) // path is escaped
	if err != nil {
		return out, err
	}
	u.RawQuery = query.Encode()
	q, err := http.NewRequestWithContext(ctx, method, u.String(), in)
	if err != nil {
		return out, err
	}
	var r *http.Response
	r, out.body, err = c.send(ctx, q)
	switch {
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	case err != nil:
		return out, c.explain(err)
	case r.StatusCode == http.StatusOK:
		out.warning = r.Header.Get(control.WarningHeader)
		return out, nil
	}
	var failed control.Error
	if json.Unmarshal(out.body, &failed) != nil || failed.Error == "" {
		return out, fmt.Errorf("control socket %s: it answers %s: is it that of shaper?", say.Printable(c.path), r.Status)
	}
	refused := &refusedError{status: r.StatusCode}
	for line := range strings.SplitSeq(failed.Error, "\n") {
		refused.lines = append(refused.lines, errors.New(say.Printable(line)))
	}
	return out, refused
}

// send sends a request, and returns the response with its body. Without a client of package net/http, whose
// HTTP/2 and proxies a socket does not need, the program is half a megabyte smaller.
func (c *Client) send(ctx context.Context, q *http.Request) (r *http.Response, body []byte, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerTime)) // cannot fail
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	q.Close = true
	unsent := q.Write(conn) // the server may answer before it has read a body that is too large
	if r, err = http.ReadResponse(bufio.NewReader(conn), q); err == nil {
		body, err = io.ReadAll(r.Body)
	}
	if err != nil {
		err = cmp.Or(unsent, err)
	}
	return r, body, err
}

// explain says why nobody answers at the socket.
func (c *Client) explain(err error) error {
	why := err
	switch {
	case errors.Is(err, fs.ErrNotExist):
		why = errors.New("there is none: start shaper serve, or shaper run, with this control socket")
	case errors.Is(err, fs.ErrPermission):
		why = errors.New("no permission: it is for the user of the process, root, and the group of control-group")
	case errors.Is(err, unix.ECONNREFUSED):
		why = errors.New("no process listens: it has ended")
	}
	return fmt.Errorf("control socket %s: %w", say.Printable(c.path), why)
}

// get returns the answer to a GET, decoded.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (out T, err error) {
	a, err := c.ask(ctx, http.MethodGet, path, query, nil)
	if err == nil {
		err = c.decode(a.body, &out)
	}
	return out, err
}

// decode decodes an answer.
func (c *Client) decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("control socket %s: the answer is that of another version of shaper: %w",
			say.Printable(c.path), err)
	}
	return nil
}
