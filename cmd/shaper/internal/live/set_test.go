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
		if err := setBy(nil, newCaller(near)); !errors.Is(err, errSetLate) ||
			time.Since(begin) != setTimeout {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
	})
}

// keptBy is a shaper with a keeper.
type keptBy struct {
	Handle
	k keeper
}

func (k keptBy) keeper() (keeper, error) { return k.k, nil }

// TestSetSeveralRuns checks that directions of several commands are told apart, even if one of them
// belongs to a shaper tap.
func TestSetSeveralRuns(t *testing.T) {
	run := keptBy{k: keeper{path: "/run/a"}}
	for _, other := range []Handle{&tapHandle{client: new(caller)}, keptBy{k: keeper{path: "/run/b"}}} {
		if err := Set([]Handle{run, other}, nil); !errors.Is(err, ErrSeveralRuns) {
			t.Errorf("%T: got %v", other, err)
		}
	}
}
