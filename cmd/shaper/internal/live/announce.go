package live

import (
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Act is what another process does to a shaper.
type Act string

// The acts of other processes.
const (
	Reload  Act = "reload"
	Confirm Act = "confirm"
	Detach  Act = "detach"
)

// announcement says that a process is about to act.
type announcement struct {
	Act       Act
	Direction dataplane.Direction
	Author    changes.Author
}

// announceTime is the time for a process to hear an announcement.
const announceTime = time.Second

// Announce tells the processes of shapers who is about to act, for their logs. A process without an
// answer is not waited for again.
func Announce(list []Handle, act Act, author changes.Author) {
	silent := map[int]bool{}
	for _, sh := range list {
		about := sh.Info()
		if silent[about.Process] {
			continue
		}
		client := sh.announceTo()
		if client == nil {
			continue
		}
		client.within(announceTime)
		silent[about.Process] = client.call("Announce", announcement{act, about.Direction, author},
			&struct{}{}) != nil
		client.Close()
	}
}

// Heard keeps the announcements of other processes. The zero value is ready for use.
type Heard struct {
	Warn func(format string, args ...any) // prints a line in the log; used by shaper tap

	mu   sync.Mutex
	last map[heardKey]heard
}

type heardKey struct {
	act       Act
	direction dataplane.Direction
}

type heard struct {
	author changes.Author
	at     time.Time
}

// heardTime is the time within which an announced act happens: it may wait for a lock.
const heardTime = time.Minute

func (h *Heard) announce(in announcement, _ *struct{}) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch in.Act {
	case Reload, Confirm, Detach:
		if h.last == nil {
			h.last = map[heardKey]heard{}
		}
		h.last[heardKey{in.Act, in.Direction}] = heard{in.Author, time.Now()}
	}
	return nil
}

// By returns who acted on a direction, and forgets it.
func (h *Heard) By(act Act, direction dataplane.Direction) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := heardKey{act, direction}
	last, ok := h.last[key]
	delete(h.last, key)
	if by := last.author.String(); ok && by != "" && time.Since(last.at) < heardTime {
		return by
	}
	return Unknown
}

// Unknown is who acted without an announcement.
const Unknown = "another process"
