package replay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

var errDisk = errors.New("disk failure")

// TestInputFails checks that Run returns an I/O error of the source unchanged,
// with all packets before it in the output.
func TestInputFails(t *testing.T) {
	for name, c := range smallCaptures() {
		ends, packets := wholeRecords(t, c)
		for i, end := range ends {
			for _, cut := range []int{end, min(end+5, len(c.bytes))} {
				in := io.MultiReader(bytes.NewReader(c.bytes[:cut]), iotest.ErrReader(errDisk))
				var out bytes.Buffer
				s, err := Run(t.Context(), in, transparent(t), Config{Output: &out})
				want := packets[i]
				if cut == len(c.bytes) {
					want = 3
				}
				if !errors.Is(err, errDisk) || errors.As(err, new(*BrokenError)) || s.Packets != int64(want) {
					t.Errorf("%s, failure after %d bytes: got %d packets, %v, want %d", name, cut, s.Packets,
						err, want)
				}
				if back := readBack(t, out.Bytes()); len(back) != want {
					t.Errorf("%s, failure after %d bytes: got %d packets in the output, want %d", name, cut,
						len(back), want)
				}
			}
		}
	}
}

// TestDribble reads one byte at a time.
func TestDribble(t *testing.T) {
	for name, c := range smallCaptures() {
		var out bytes.Buffer
		s, err := Run(t.Context(), iotest.OneByteReader(bytes.NewReader(c.bytes)), transparent(t),
			Config{Output: &out})
		if err != nil || s.Packets != 3 || !bytes.Equal(out.Bytes(), unsectioned(c.bytes)) {
			t.Errorf("%s: got %+v, %v, want 3 packets and the input as output", name, s, err)
		}
	}
}

// TestLargestRecord passes packets of the largest size between small ones.
func TestLargestRecord(t *testing.T) {
	c := littleEndian().pcap(magicMicro, ethernet)
	for range 3 {
		c.packet(1, 0, ethernetFrame(ipv4(40, 0, 1)))
		c.packet(1, 0, make([]byte, maxRecord-16))
		c.packet(1, 0, nil)
	}
	out, s := mustReplay(t, c.bytes, transparent(t))
	if s.Packets != 9 || !bytes.Equal(out, c.bytes) {
		t.Errorf("got %d packets, %d bytes, want 9 and %d", s.Packets, len(out), len(c.bytes))
	}
}

// limited is a writer that fails after some bytes.
type limited struct{ room int }

func (w *limited) Write(b []byte) (int, error) {
	if len(b) > w.room {
		n := w.room
		w.room = 0
		return n, errDisk
	}
	w.room -= len(b)
	return len(b), nil
}

// TestOutputFails checks that an error of the output is an OutputError,
// wherever it occurs: in the header, within packets, or in packets queued until
// the end.
func TestOutputFails(t *testing.T) {
	c := littleEndian().pcap(magicMicro, ethernet)
	for range 600 {
		c.packet(1, 0, ethernetFrame(ipv4(1000, 0, 1)))
	}
	for name, p := range map[string]func(testing.TB) Go{
		"transparent": transparent, "queued": queued, "linked": linked,
	} {
		for _, room := range []int{0, 1, 24, 25, 300_000, len(c.bytes) - 1} {
			_, err := Run(t.Context(), bytes.NewReader(c.bytes), p(t), Config{Output: &limited{room}})
			if !errors.As(err, new(*OutputError)) || !errors.Is(err, errDisk) {
				t.Errorf("%s, room for %d bytes: got %v, want an OutputError", name, room, err)
			}
		}
		if _, err := Run(t.Context(), bytes.NewReader(c.bytes), p(t),
			Config{Output: &limited{len(c.bytes)}}); err != nil {
			t.Errorf("%s, enough room: got %v, want nil", name, err)
		}
	}
}

// TestEachFails checks that Run returns an error of Each unchanged, with a
// valid output.
func TestEachFails(t *testing.T) {
	in := smallCaptures()["pcapng"].bytes
	var out bytes.Buffer
	s, err := Run(t.Context(), bytes.NewReader(in), transparent(t), Config{
		Output: &out,
		Each: func(p *dataplane.Packet, _ *dataplane.Verdict) error {
			if p.ID == 2 {
				return errDisk
			}
			return nil
		},
	})
	if err != errDisk || s.Packets != 2 {
		t.Errorf("got %d packets, %v, want 2 and Each's error", s.Packets, err)
	}
	if n := len(readBack(t, out.Bytes())); n != 1 {
		t.Errorf("got %d packets in the output, want 1", n)
	}
}

// endless is an infinite capture of IP packets. They arrive at one byte per
// microsecond.
type endless struct {
	size uint64 // bytes per packet
	buf  []byte // 64 packets
	left []byte
	next uint64 // timestamp of the next packet, µs
	sent atomic.Int64
}

func newEndless(size int) *endless {
	e := &endless{size: uint64(size), left: littleEndian().pcap(magicMicro, ethernet).bytes}
	c := littleEndian()
	for range 64 {
		c.packet(0, 0, ethernetFrame(ipv4(size, 0, 1)))
	}
	e.buf = c.bytes
	return e
}

func (e *endless) Read(b []byte) (int, error) {
	if len(e.left) == 0 {
		c := littleEndian()
		for at := 0; at < len(e.buf); at += len(e.buf) / 64 {
			c.PutUint32(e.buf[at:], uint32(e.next/1e6))
			c.PutUint32(e.buf[at+4:], uint32(e.next%1e6))
			e.next += e.size
		}
		e.left = e.buf
	}
	n := copy(b, e.left)
	e.left = e.left[n:]
	e.sent.Add(int64(n))
	return n, nil
}

// TestCancel cancels a run in the middle of a stream: it must return the
// context's cause, with a valid output up to then.
func TestCancel(t *testing.T) {
	cause := errors.New("enough")
	for name, p := range map[string]func(testing.TB) Go{
		"transparent": transparent, "queued": queued, "linked": linked,
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var out bytes.Buffer
		s, err := Run(ctx, newEndless(100), p(t), Config{
			Output: &out,
			Each: func(p *dataplane.Packet, _ *dataplane.Verdict) error {
				if p.ID == 3000 {
					cancel(cause)
				}
				return nil
			},
		})
		if err != cause || s.Packets < 3000 || s.Packets > 6000 {
			t.Errorf("%s: got %d packets, %v, want the cause soon after 3000", name, s.Packets, err)
		}
		if back := readBack(t, out.Bytes()); int64(len(back)) != s.Packets {
			t.Errorf("%s: got %d packets in the output, want %d", name, len(back), s.Packets)
		}
	}
}

// TestCancelBlocked cancels a run that is blocked on input, in the middle of a
// packet and inside gzip's reader.
func TestCancelBlocked(t *testing.T) {
	in := smallCaptures()["pcap"].bytes
	for name, test := range map[string]struct {
		in      []byte
		packets int64
	}{
		"nothing":           {nil, 0},
		"magic of gzip":     {[]byte{0x1f, 0x8b}, 0},
		"header":            {in[:24], 0},
		"within a packet":   {in[:len(in)-3], 2},
		"after all packets": {in, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, w := io.Pipe()
				defer w.Close()
				cause := errors.New("enough")
				ctx, cancel := context.WithCancelCause(t.Context())
				go func() {
					_, _ = w.Write(test.in)
					synctest.Wait() // until Run blocks
					cancel(cause)
				}()
				var out bytes.Buffer
				s, err := Run(ctx, r, transparent(t), Config{Output: &out})
				if err != cause || s.Packets != test.packets {
					t.Errorf("got %d packets, %v, want %d and the cause", s.Packets, err, test.packets)
				}
				if len(test.in) >= 24 {
					if n := len(readBack(t, out.Bytes())); int64(n) != test.packets {
						t.Errorf("got %d packets in the output, want %d", n, test.packets)
					}
				}
			})
		})
	}
}

// TestLeavesNoGoroutines checks that all goroutines end once the pending read
// returns.
func TestLeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	c := smallCaptures()["pcapng"]
	for _, in := range [][]byte{
		nil, c.bytes, c.bytes[:len(c.bytes)-5], {0x1f, 0x8b, 0x55}, []byte("no capture"),
	} {
		Run(t.Context(), bytes.NewReader(in), transparent(t), Config{Output: io.Discard})
	}
	Run(t.Context(), newEndless(1000), transparent(t), Config{Output: &limited{1 << 20}})
	Run(t.Context(), newEndless(1000), transparent(t), Config{
		Each: func(*dataplane.Packet, *dataplane.Verdict) error { return errDisk },
	})
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	Run(ctx, r, transparent(t), Config{})
	w.Close()
	for range 200 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	stacks := make([]byte, 1<<16)
	t.Errorf("got %d goroutines, want at most %d as before:\n%s", runtime.NumGoroutine(), before,
		stacks[:runtime.Stack(stacks, true)])
}

// TestMemory replays 300 MB of packets, each of which is queued briefly. Memory
// must not grow with the capture.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("300 MB take a second")
	}
	const size, limit = 300 << 20, 64 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := uint64(0)
	in := newEndless(8000)
	_, err := Run(t.Context(), in, queued(t), Config{
		Output: io.Discard,
		Each: func(p *dataplane.Packet, _ *dataplane.Verdict) error {
			if p.ID%4096 == 0 {
				runtime.ReadMemStats(&after)
				most = max(most, after.HeapAlloc)
			}
			if in.sent.Load() > size {
				return io.EOF
			}
			return nil
		},
	})
	if err != io.EOF {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.Sys - before.Sys; grown > limit {
		t.Errorf("the process grew by %d MiB, want at most 64", grown>>20)
	}
	if most > before.HeapAlloc+limit {
		t.Errorf("the heap was %d MiB, want at most 64 more than %d", most>>20, before.HeapAlloc>>20)
	}
}
