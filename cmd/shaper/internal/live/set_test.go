package live

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestSetLate checks that the error of a process that does not answer says that the change may follow.
func TestSetLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		begin := time.Now()
		if err := setBy(nil, newCaller(near)); !errors.Is(err, errSetLate) || time.Since(begin) != setTimeout {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
	})
}
