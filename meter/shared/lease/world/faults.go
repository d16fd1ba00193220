package world

import (
	"maps"
	"strconv"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// storeTime is the server's clock, µs.
func (w *World) storeTime() int64 { return epoch + (w.Now+w.clock)/1000 }

// epoch is what the server's clock shows when the world begins, µs.
const epoch = 1_700_000_000_000_000

// Flush has the store lose its data.
func (w *World) Flush() {
	w.Store = lease.Store{}
	w.lose(map[string]known{})
}

// Stall has the replica get nothing any more. If the server has noticed, it counts it
// no longer, and hosts use increases without it.
func (w *World) Stall(noticed bool) {
	if !w.stalled {
		w.stalled, w.replica, w.copied = true, w.Store.Clone(), maps.Clone(w.known)
	}
	if noticed && !w.Blind {
		w.server.Replicas = 0
	}
}

// Resume has a stalled replica get all that the store has.
func (w *World) Resume() {
	w.stalled, w.replica, w.copied = false, lease.Store{}, nil
	if w.Replica && !w.Blind {
		w.server.Replicas = 1
	}
}

// Failover has the replica take over, with all data or with what it had when it
// stalled.
func (w *World) Failover() {
	w.former.Store, w.former.Server = w.Store.Clone(), w.server
	if id, err := strconv.Atoi(w.server.ID); err == nil {
		w.server.ID = strconv.Itoa(id + 1)
	}
	if w.stalled {
		w.Store = w.replica
		if w.server.Replicas <= 0 { // it lacks increases
			w.fault(lease.Behind, 0)
			w.copied = map[string]known{}
		}
		w.lose(w.copied)
	}
	w.Resume()
}

// former is a server that was replaced, and does not know it.
type former struct {
	lease.Store
	lease.Server
	hosts int // that call it, or did until their leases end
}

// Stray has a host call the server that was replaced at the last failover, which answers
// all the same, or no longer.
func (w *World) Stray(h *Host, strays bool) {
	switch {
	case strays && !h.strays:
		w.former.hosts++
	case h.strays && !strays:
		w.At(w.regard(), func() { w.former.hosts-- })
	}
	h.strays = strays
}

// Jump moves the clock of the store's server.
func (w *World) Jump(by int64) {
	w.clock += by
	if by > 0 {
		w.fault(lease.Ahead, by)
	} else {
		w.fault(lease.Back, -by)
	}
}

// fault adds what may pass beyond the budget because of a fault.
func (w *World) fault(c lease.Case, by int64) {
	once := w.Terms.Bound(c, by).Once
	for i := range once {
		w.bound[i] += float64(once[i])
	}
}

// served notes what a call has changed in whom the store knows.
func (w *World) served(h *Host, m *message) {
	if h.strays {
		return
	}
	if m.reply.Refused != lease.Granted {
		w.Stats.Refused++
		return
	}
	if name := m.request.Host; w.known[name].instance != m.request.Instance {
		w.known[name] = known{m.request.Instance, w.Now + w.regard()}
		w.look(name)
		w.At(w.regard(), func() { w.look(name) })
	}
	if w.Check != nil {
		w.Check()
	}
}

// regard is how long it takes until all leases are over that are from before the store
// knew of a host, or from before it looked at it.
func (w *World) regard() int64 { return w.Terms.Lease() + w.Terms.Interval/2 }

// look finds strangers again among the hosts of a name, or all.
func (w *World) look(name string) {
	for _, h := range w.Hosts {
		if name == "" || h.Name == name {
			w.flow(h)
			w.apply(h)
		}
	}
}

// stranger is what a host may use beyond what the store counts: it never heard of the
// store, the store does not know it, or other hosts' leases are from before it did. A
// store that has lost its data gives nobody more than he has for a lease.
func (w *World) stranger(h *Host) lease.Amounts {
	k := w.known[h.Name]
	_, heard := h.Heard()
	switch {
	case !heard, k.instance != h.instance && w.Now >= h.unknown:
		h.strange, h.began = true, h.Plan().Phase[2]
	case k.instance != h.instance, w.Now >= k.until:
		h.strange = false
	}
	if h.strange {
		return h.began
	}
	return lease.Amounts{}
}

// lose has the store know no more than some of the hosts.
func (w *World) lose(left map[string]known) {
	ends := w.Now + w.Terms.Lease()
	for _, h := range w.Hosts {
		if w.known[h.Name].instance == h.instance && left[h.Name].instance != h.instance {
			h.unknown = ends
		}
	}
	w.known = left
	w.look("")
	w.At(w.Terms.Lease(), func() { w.look("") })
}

// known is the process that the store's data has under a name.
type known struct {
	instance int64
	until    int64 // when leases that were given without regard to it are over
}
