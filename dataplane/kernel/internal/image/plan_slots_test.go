package image

import (
	"errors"
	"testing"
	"testing/synctest"
)

// TestPlanSlots takes places while programs run. It waits for their end only when no place is free,
// and takes no place that a program may read.
func TestPlanSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan error)
		p := planSlots{await: func() error { return <-end }}
		for i := range 10 {
			p.free = append(p.free, uint32(i))
		}
		take := func() uint32 {
			t.Helper()
			at, err := p.take()
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		running := map[uint32]bool{} // a program may read them
		for range 3 {
			at := take()
			running[at] = true
			p.freed = append(p.freed, at)
		}
		for range 7 { // without an end of the programs
			if at := take(); running[at] {
				t.Fatalf("took %d, which a program may read", at)
			}
		}
		if p.ended == nil {
			t.Fatal("it does not wait ahead")
		}
		ahead := len(p.waiting)
		taken := make(chan uint32)
		go func() { taken <- take() }()
		synctest.Wait()
		select {
		case at := <-taken:
			t.Fatalf("took %d, which a program may read", at)
		default:
		}
		end <- nil
		if at := <-taken; !running[at] {
			t.Errorf("took %d", at)
		}
		for range ahead - 1 {
			take()
		}
		go func() { end <- nil }() // for the places that were freed after the wait began
		for range 3 - ahead {
			take()
		}
		if _, err := p.take(); !errors.Is(err, ErrNoRoom) {
			t.Errorf("without a place: got error %v", err)
		}
		p.freed = []uint32{1}
		failed := errors.New("failed")
		go func() { end <- failed }()
		if _, err := p.take(); !errors.Is(err, failed) {
			t.Errorf("got error %v", err)
		}
	})
}
