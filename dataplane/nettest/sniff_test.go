//go:build linux

package nettest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSniff checks that a capture has all received frames in order, with their VLAN tags and times,
// and none that the device sent.
func TestSniff(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	var sent [][]byte
	for i := range 1000 {
		frame := ethernet(60, 0x0800)
		binary.BigEndian.PutUint32(frame[20:], uint32(i))
		sent = append(sent, frame)
	}
	sent = append(sent,
		ethernet(14, 0x88b5),
		ethernet(1514, 0x86dd),
		ethernet(64, 0x8100, 0x6123, 0x0800),
		ethernet(64, 0x8100, 0xe000, 0x0800), // priority tag, VLAN 0
		ethernet(1518, 0x8100, 0x0fff, 0x0800),
		ethernet(64, 0x88a8, 0x2064, 0x8100, 0x60c8, 0x86dd),
		ethernet(1518, 0x8100, 0x0001, 0x8100, 0x0002, 0x0800),
	)
	s, own := b.Sniff("v0"), a.Sniff("v0")
	before := time.Now().UnixNano()
	a.Inject("v0", sent...)
	if !s.Wait(len(sent), waitLimit) {
		t.Error("too few frames")
	}
	after := time.Now().UnixNano()
	got := s.Stop()
	if len(got) != len(sent) {
		t.Fatalf("%d frames, want %d", len(got), len(sent))
	}
	for i, f := range got {
		if !bytes.Equal(f.Data, sent[i]) {
			t.Errorf("frame %d:\n got %x\nwant %x", i, f.Data, sent[i])
		}
		if f.Time < before || f.Time > after {
			t.Errorf("frame %d: time %d, want within [%d, %d]", i, f.Time, before, after)
		}
		before = f.Time
	}
	if got := own.Stop(); len(got) != 0 {
		t.Errorf("captured %d frames on the sending device, want 0", len(got))
	}
	if again := s.Stop(); len(again) != len(sent) {
		t.Errorf("second Stop: %d frames, want %d", len(again), len(sent))
	}
}

// fatalTB records the message of Fatalf, which ends only the goroutine.
type fatalTB struct {
	testing.TB
	message string
}

func (t *fatalTB) Fatalf(format string, args ...any) {
	t.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestSniffDrops checks that a capture with drops fails: it stops the reader until the buffer
// overflows.
func TestSniffDrops(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	s := b.Sniff("v0")
	var fatal fatalTB
	fatal.TB, s.t = t, &fatal
	s.mu.Lock()
	if err := s.conn.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4096); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Error(err)
	}
	for range 100 {
		a.Inject("v0", ethernet(1000, 0x0800))
	}
	s.mu.Unlock()
	var wait sync.WaitGroup
	wait.Go(func() { s.Stop() })
	wait.Wait()
	if !strings.Contains(fatal.message, "of 100 frames") {
		t.Errorf("failed with %q, want the number of drops", fatal.message)
	}
}
