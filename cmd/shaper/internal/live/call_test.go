package live

import (
	"bytes"
	"encoding/gob"
	"errors"
	"io"
	"net"
	"net/rpc"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// callee is served in two ways: through methods, and by net/rpc.
type callee struct{}

func (*callee) Double(in []int, out *[]int) error {
	for _, n := range in {
		*out = append(*out, 2*n)
	}
	return nil
}

func (*callee) Empty(struct{}, *struct{}) error { return nil }

func (*callee) Fail(int, *int) error { return errors.New("no reason") }

func (*callee) Snapshot(name string, out *[]Snapshot) error {
	*out = []Snapshot{{
		About: kernel.About{Interface: name, Since: time.Unix(1, 2).UTC()},
		Now: tap.Snapshot{
			Stats:  []dataplane.ClassStats{{Behind: dataplane.Count{Packets: 3}}},
			Tokens: [][2]int64{{-4, 5}, {}},
		},
	}}
	return nil
}

func (c *callee) methods() methods {
	return methods{
		"Double": method(c.Double), "Empty": method(c.Empty), "Fail": method(c.Fail),
		"Snapshot": method(c.Snapshot),
	}
}

// TestCall calls all methods with each kind of caller and of server. Processes of different
// versions may call each other, and earlier versions used net/rpc.
func TestCall(t *testing.T) {
	t.Parallel()
	old := rpc.NewServer()
	if err := old.RegisterName("control", new(callee)); err != nil {
		t.Fatal(err)
	}
	for server, serve := range map[string]func(net.Conn){
		"ours":    new(callee).methods().serve,
		"net/rpc": func(conn net.Conn) { old.ServeConn(conn) },
	} {
		for client, dial := range map[string]func(net.Conn) func(method string, in, out any) error{
			"ours": func(conn net.Conn) func(string, any, any) error { return newCaller(conn).call },
			"net/rpc": func(conn net.Conn) func(string, any, any) error {
				client := rpc.NewClient(conn)
				return func(method string, in, out any) error {
					return client.Call("control."+method, in, out)
				}
			},
		} {
			t.Run(client+" to "+server, func(t *testing.T) {
				here, there := net.Pipe()
				defer here.Close()
				go serve(there)
				call := dial(here)
				for range 2 { // types are sent once
					var doubled []int
					if err := call("Double", []int{1, 2}, &doubled); err != nil ||
						!reflect.DeepEqual(doubled, []int{2, 4}) {
						t.Errorf("Double: got %v, %v, want [2 4]", doubled, err)
					}
					if err := call("Fail", 1, new(int)); err == nil || err.Error() != "no reason" {
						t.Errorf("Fail: got %v, want \"no reason\"", err)
					}
					if err := call("Missing", []int{1}, new(int)); err == nil {
						t.Error("a missing method: got nil, want an error")
					}
					if err := call("Double", "text", new([]int)); err == nil {
						t.Error("parameters of the wrong type: got nil, want an error")
					}
					if err := call("Empty", struct{}{}, &struct{}{}); err != nil {
						t.Errorf("Empty: got %v, want nil", err)
					}
					var got, want []Snapshot
					_ = new(callee).Snapshot("eth0", &want)
					if err := call("Snapshot", "eth0", &got); err != nil || !reflect.DeepEqual(got, want) {
						t.Errorf("Snapshot: got %v, %+v, want %+v", err, got, want)
					}
				}
			})
		}
	}
}

// TestCallsTakeTurns checks that each of many concurrent calls gets its own answer.
func TestCallsTakeTurns(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer here.Close()
	go new(callee).methods().serve(there)
	client := newCaller(here)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			var out []int
			if err := client.call("Double", []int{i}, &out); err != nil || len(out) != 1 || out[0] != 2*i {
				t.Error(strconv.Itoa(i), out, err)
			}
		})
	}
	all.Wait()
}

// TestCallEnds checks that a call fails if the other process ends before or during it, or
// does not answer in time.
func TestCallEnds(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("unix", t.TempDir()+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	connected := func() (*caller, net.Conn) {
		conn, err := net.Dial("unix", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go func() { other, _ := listener.Accept(); accepted <- other }()
		return newCaller(conn), <-accepted
	}
	client, other := connected()
	go func(other net.Conn) { // it reads a part of the call
		_, _ = other.Read(make([]byte, 1))
		other.Close()
	}(other)
	if err := client.call("Empty", struct{}{}, &struct{}{}); !errors.Is(err, errProcessEnded) {
		t.Errorf("process ended during the call: got %v, want errProcessEnded", err)
	}
	client, other = connected()
	other.Close()
	if err := client.call("Empty", struct{}{}, &struct{}{}); !errors.Is(err, errProcessEnded) {
		t.Errorf("process ended before the call: got %v, want errProcessEnded", err)
	}
	client, other = connected()
	defer other.Close()
	client.within(time.Millisecond)
	var late net.Error
	if err := client.call("Empty", struct{}{}, &struct{}{}); !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("a process that does not answer: got %v, want a timeout", err)
	}
}

// FuzzCall sends any bytes to a server, and to a caller as an answer. Both return.
func FuzzCall(f *testing.F) {
	for _, method := range []string{"Double", "Snapshot", "Fail", "None"} {
		var b bytes.Buffer
		e := gob.NewEncoder(&b)
		if err := errors.Join(e.Encode(callHeader{ServiceMethod: servicePrefix + method, Seq: 1}),
			e.Encode([]int{1})); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		ends := [2]func(net.Conn){
			new(callee).methods().serve,
			func(conn net.Conn) {
				defer conn.Close()
				c := newCaller(conn)
				for range 3 {
					if c.call("Snapshot", "v0", new([]Snapshot)) != nil {
						return
					}
				}
			},
		}
		for _, end := range ends {
			here, there := net.Pipe()
			done := make(chan struct{})
			go func() {
				end(there)
				close(done)
			}()
			go func() { _, _ = io.Copy(io.Discard, here) }()
			_, _ = here.Write(sent)
			here.Close()
			<-done
		}
	})
}

// FuzzDuty reads the duty of a guard. The duty in its next environment is the same.
func FuzzDuty(f *testing.F) {
	f.Add(`{"Parent":5,"Left":[{"At":{"Namespace":1,"Index":2},"Directions":[0,1],"Stays":true}],"Tries":3}`)
	f.Add("null")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parseDuty(text)
		if err != nil {
			return
		}
		checkDuty(t, d)
	})
}

// TestDutyOfMany passes a duty at more interfaces than fit into a variable.
func TestDutyOfMany(t *testing.T) {
	d := duty{Parent: 7, Tries: 2}
	for i := range 2*dutyOrders + 1 {
		d.Left = append(d.Left, order{At: kernel.Identity{Namespace: 1 << 40, Index: i}})
	}
	checkDuty(t, d)
}

// checkDuty checks that the next process reads the same duty.
func checkDuty(t *testing.T, d duty) {
	t.Helper()
	var names []string
	for _, v := range d.environ() {
		if name, text, _ := strings.Cut(v, "="); strings.HasPrefix(name, dutyVariable) {
			if len(v) >= 128<<10 {
				t.Errorf("a variable of %d bytes", len(v))
			}
			names = append(names, name)
			os.Setenv(name, text)
		}
	}
	next, err := readDuty()
	for _, name := range names {
		os.Unsetenv(name)
	}
	if len(d.Left) == 0 {
		d.Left = next.Left
	}
	if err != nil || !reflect.DeepEqual(next, d) {
		t.Errorf("%+v, next %+v, %v", d, next, err)
	}
}
