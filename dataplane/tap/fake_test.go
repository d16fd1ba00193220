package tap

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// inBubble runs f in a testing/synctest bubble, where time is exact.
func inBubble(t *testing.T, f func(t *testing.T, d *Fake, p Port)) {
	synctest.Test(t, func(t *testing.T) {
		d := NewFake("fake", 2)
		f(t, d, d.Ports()[1])
	})
}

func TestFakeFrames(t *testing.T) {
	inBubble(t, func(t *testing.T, d *Fake, p Port) {
		if d.Name() != "fake" || len(d.Ports()) != 2 {
			t.Fatalf("got device %q with %d ports, want \"fake\" with 2", d.Name(), len(d.Ports()))
		}
		var sent [][]byte
		for i := range 5 {
			sent = append(sent, withHeader(numberedFrame(60+i, i)))
			if !d.Send(1, sent[i]) {
				t.Fatalf("Send of frame %d failed", i)
			}
		}
		into := newBuffers(3)
		var got [][]byte
		for range 3 {
			if err := p.Wait(math.MaxInt64 - int64(len(got))); len(got) < 5 && err != nil {
				t.Fatal(err)
			}
			n, err := p.Read(into)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range into[:n] {
				got = append(got, slices.Clone(b))
			}
			if len(got) == 5 {
				break
			}
		}
		if !slices.EqualFunc(got, sent, bytes.Equal) {
			t.Errorf("got %x, want %x", got, sent)
		}
		if n, err := d.Ports()[0].Read(into); n != 0 || err != nil {
			t.Errorf("the other queue: Read returned %d, %v, want 0, nil", n, err)
		}
		if n, err := p.Write(sent); n != 5 || err != nil {
			t.Errorf("Write returned %d, %v, want 5, nil", n, err)
		}
		for _, want := range sent {
			if got, ok := d.Receive(1); !ok || !bytes.Equal(got, want) {
				t.Errorf("got %x %v, want %x", got, ok, want)
			}
		}
		if _, ok := d.TryReceive(1); ok {
			t.Error("TryReceive returned a frame, want none")
		}
	})
}

// TestFakeTime checks that Wait ends exactly at its deadline, on a frame, and
// on Wake.
func TestFakeTime(t *testing.T) {
	inBubble(t, func(t *testing.T, d *Fake, p Port) {
		ends := func(what string, deadline, want int64) {
			t.Helper()
			if err := p.Wait(deadline); err != nil || Now() != want {
				t.Errorf("%s: at %d, %v, want %d", what, Now(), err, want)
			}
		}
		began := Now()
		if began < 0 {
			t.Errorf("got %d at the start of the bubble, want 0 or more", began)
		}
		ends("deadline", began+242_001, began+242_001)
		ends("past", began, began+242_001)
		go func() {
			time.Sleep(time.Second)
			d.Send(1, withHeader(numberedFrame(60, 1)))
		}()
		ends("frame", math.MaxInt64, began+242_001+1e9)
		ends("the same", math.MaxInt64, began+242_001+1e9)
		if n, err := p.Read(newBuffers(2)); n != 1 || err != nil {
			t.Errorf("Read returned %d, %v, want 1, nil", n, err)
		}
		go func() {
			time.Sleep(time.Second)
			p.Wake()
			p.Wake()
		}()
		ends("wake", math.MaxInt64, began+242_001+2e9)
		synctest.Wait()
		began = Now()
		_ = p.Wait(began + 5) // may return early, for the second wake
		ends("deadline", began+10, began+10)
	})
}

// TestFakeFull checks that a full device refuses frames, and that a frame that does not fit
// its buffer is lost.
func TestFakeFull(t *testing.T) {
	inBubble(t, func(t *testing.T, d *Fake, p Port) {
		d.SetFull(true)
		frames := [][]byte{withHeader(numberedFrame(60, 1)), withHeader(numberedFrame(60, 2))}
		if n, err := p.Write(frames); n != 0 || err != nil || len(frames[0])+len(frames[1]) != 0 {
			t.Errorf("device full: Write returned %d, %v and left %x, want 0, nil and empty frames", n, err,
				frames)
		}
		d.SetFull(false)
		for i := range fakeLen + 1 {
			n, err := p.Write([][]byte{withHeader(numberedFrame(60, i))})
			if want := i < fakeLen; (n == 1) != want || err != nil {
				t.Fatalf("frame %d: Write returned %d, %v, want %v, nil", i, n, err, want)
			}
			if sent, want := d.TrySend(1, withHeader(numberedFrame(60, i))), i < fakeLen; sent != want {
				t.Fatalf("frame %d: TrySend returned %v, want %v", i, sent, want)
			}
		}
		if n, err := p.Read([][]byte{make([]byte, 0, 99)}); n != 1 || err != nil {
			t.Errorf("large buffer: Read returned %d, %v, want 1, nil", n, err)
		}
		if n, err := p.Read([][]byte{make([]byte, 0, 9)}); n != 0 || err != nil { // loses all other frames
			t.Errorf("small buffer: Read returned %d, %v, want 0, nil", n, err)
		}
		if !d.TrySend(1, withHeader(numberedFrame(60, 1))) {
			t.Error("TrySend failed after all frames were lost")
		}
		if n, err := p.Read([][]byte{make([]byte, 0, 99), make([]byte, 0, 99)}); n != 1 || err != nil {
			t.Errorf("after the loss: Read returned %d, %v, want 1, nil", n, err)
		}
	})
}

// TestFakeGone checks that all blocked calls return when the device is gone,
// and that frames written before can still be received.
func TestFakeGone(t *testing.T) {
	inBubble(t, func(t *testing.T, d *Fake, p Port) {
		if n, err := p.Write([][]byte{withHeader(numberedFrame(60, 1))}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		for d.TrySend(0, withHeader(numberedFrame(60, 1))) {
		}
		result := make(chan error)
		done := make(chan bool)
		go func() { result <- p.Wait(math.MaxInt64) }()
		go func() { done <- d.Send(0, withHeader(numberedFrame(60, 1))) }()
		go func() {
			_, ok := d.Receive(0)
			done <- ok
		}()
		synctest.Wait()
		for range 2 {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := <-result; !errors.Is(err, ErrGone) {
			t.Error(err)
		}
		if a, b := <-done, <-done; a || b {
			t.Errorf("Send and Receive returned %v and %v on a closed device, want false", a, b)
		}
		checkGone(t, p)
		if d.Send(1, withHeader(numberedFrame(60, 1))) || d.TrySend(1, withHeader(numberedFrame(60, 1))) {
			t.Error("Send on a closed device returned true")
		}
		if _, ok := d.Receive(1); !ok {
			t.Error("Receive lost a frame that was written before Close")
		}
		if _, ok := d.Receive(1); ok {
			t.Error("Receive returned a frame that was never written")
		}
	})
}
