package replay

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestLivePipe writes packets to a pipe, with pauses. Each must leave 100 ms after the last
// one, or at once if each packet is flushed, although a batch has 32.
func TestLivePipe(t *testing.T) {
	for name, test := range map[string]struct {
		capture *capture
		each    bool
		delay   time.Duration
	}{
		"pause, pcap":    {littleEndian().pcap(magicMicro, ethernet), false, 100 * time.Millisecond},
		"each, pcap":     {littleEndian().pcap(magicMicro, ethernet), true, 0},
		"pause, pcapng":  {littleEndian().section().iface(ethernet, 0), false, 100 * time.Millisecond},
		"each, pcapng":   {littleEndian().section().iface(ethernet, 0), true, 0},
		"pause, simple":  {littleEndian().section().iface(ethernet, 0), false, 100 * time.Millisecond},
		"pause, in half": {littleEndian().pcap(magicMicro, ethernet), false, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, feed := io.Pipe()
				var out bytes.Buffer
				flushes := 0
				done := make(chan error)
				go func() {
					_, err := Run(t.Context(), in, transparent(t), Config{
						Output: &out, FlushEach: test.each,
						Flush: func() error { flushes++; return nil },
					})
					done <- err
				}()
				c := test.capture
				sent := 0
				send := func(upTo int) {
					if _, err := feed.Write(c.bytes[sent:upTo]); err != nil {
						t.Error(err)
					}
					sent = upTo
				}
				send(len(c.bytes))
				for i := range uint16(5) {
					frame := ethernetFrame(ipv4(64, 0, i))
					switch {
					case name == "pause, simple":
						c.simple(frame)
					case c.bytes[0] == 0x0a:
						c.enhanced(0, uint64(i), frame)
					default:
						c.packet(uint32(i), 0, frame)
					}
					before := out.Len()
					if name == "pause, in half" {
						send(len(c.bytes) - 10)
						time.Sleep(time.Second)
						if n := out.Len(); n != before && i > 0 {
							t.Errorf("packet %d: %d bytes written of half a packet", i, n-before)
						}
						before = out.Len()
					}
					send(len(c.bytes))
					if test.delay > 0 {
						time.Sleep(test.delay - time.Millisecond)
						synctest.Wait()
						if i > 0 && out.Len() != before {
							t.Errorf("packet %d: written before the pause", i)
						}
						time.Sleep(time.Millisecond)
					}
					synctest.Wait()
					if want := unsectioned(c.bytes); !bytes.Equal(out.Bytes(), want) {
						t.Errorf("packet %d: %d bytes written %v after it, want %d", i, out.Len(), test.delay,
							len(want))
					}
					at := flushes
					time.Sleep(time.Hour)
					if flushes != at || at == 0 {
						t.Errorf("packet %d: %d flushes, and %d in a pause of an hour", i, at, flushes-at)
					}
				}
				feed.Close()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestNoPause checks that a capture that arrives without pauses is written in large parts.
func TestNoPause(t *testing.T) {
	c := littleEndian().pcap(magicMicro, ethernet)
	for range 5000 {
		c.packet(1, 0, ethernetFrame(ipv4(200, 0, 1)))
	}
	var out writes
	if _, err := Run(t.Context(), bytes.NewReader(c.bytes), transparent(t),
		Config{Output: &out}); err != nil {
		t.Fatal(err)
	}
	if most := len(c.bytes)/(128<<10) + 2; out.count > most {
		t.Errorf("%d bytes were written in %d parts, want at most %d", len(c.bytes), out.count, most)
	}
}

// writes counts calls of Write.
type writes struct{ count int }

func (w *writes) Write(b []byte) (int, error) {
	w.count++
	return len(b), nil
}
