package world

import (
	"maps"
	"strconv"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// storeTime returns the time of the server's clock, µs.
func (w *World) storeTime() int64 { return epoch + (w.Now+w.clock)/1000 }

// epoch is the server's time at the start of the world, µs.
const epoch = 1_700_000_000_000_000

// Flush makes the store lose its data.
func (w *World) Flush() {
	w.Store = lease.Store{}
	w.lose(map[string]known{})
}

// Stall stops replication. If the primary notices, it reports no replica, so hosts use increases
// unknown to the replica.
func (w *World) Stall(noticed bool) {
	if !w.stalled {
		w.stalled, w.replica, w.copied = true, w.Store.Clone(), maps.Clone(w.known)
	}
	if noticed && !w.Blind {
		w.server.Replicas = 0
	}
}

// Resume restarts replication, and the replica receives all data.
func (w *World) Resume() {
	w.stalled, w.replica, w.copied = false, lease.Store{}, nil
	if w.Replica && !w.Blind {
		w.server.Replicas = 1
	}
}

// Failover makes the replica take over, with all data or with its data from
// when it stalled.
func (w *World) Failover() {
	w.former.Store, w.former.Server = w.Store.Clone(), w.server
	if id, err := strconv.Atoi(w.server.ID); err == nil {
		w.server.ID = strconv.Itoa(id + 1)
	}
	if w.stalled {
		w.Store = w.replica
		if w.server.Replicas <= 0 { // the replica lacks increases already in use
			w.fault(lease.Behind, 0)
			w.copied = map[string]known{}
		}
		w.lose(w.copied)
	}
	w.Resume()
}

// former is a server replaced at a failover, but still answering.
type former struct {
	lease.Store
	lease.Server
	hosts int // number of hosts calling it, or with valid leases from it
}

// Stray makes a host call the server replaced at the last failover, which still answers, or return
// to the current one.
func (w *World) Stray(h *Host, strays bool) {
	switch {
	case strays && !h.strays:
		w.former.hosts++
	case h.strays && !strays:
		w.At(w.regard(), func() { w.former.hosts-- })
	}
	h.strays = strays
}

// Jump moves the server's clock by a time in ns.
func (w *World) Jump(by int64) {
	w.clock += by
	if by > 0 {
		w.fault(lease.Ahead, by)
	} else {
		w.fault(lease.Back, -by)
	}
}

// fault adds the amount allowed beyond the budget because of a failure.
func (w *World) fault(c lease.Case, by int64) {
	once := w.Terms.Bound(c, by).Once
	for i := range once {
		w.bound[i] += float64(once[i])
	}
}

// granted notes that a call made a host known to the store.
func (w *World) granted(h *Host, m *message) {
	if h.strays {
		return
	}
	if m.reply.Refused != lease.Granted {
		w.Stats.Refused++
		return
	}
	if name := m.request.Host; w.known[name].instance != m.request.Instance {
		w.known[name] = known{m.request.Instance, w.Now + w.regard()}
		w.refresh(name)
		w.At(w.regard(), func() { w.refresh(name) })
	}
	if w.Check != nil {
		w.Check()
	}
}

// regard returns the time after which all leases from before the store knew of a host, or from
// before its next survey, are over.
func (w *World) regard() int64 { return w.Terms.Lease() + w.Terms.Interval/2 }

// refresh recomputes which hosts of a name, or of all names, are strangers.
func (w *World) refresh(name string) {
	for _, h := range w.Hosts {
		if name == "" || h.Name == name {
			w.flow(h)
			w.apply(h)
		}
	}
}

// stranger returns the amount allowed to a host in addition to the store's sum. The host never
// received a reply, the store does not know it, or there are leases from before the store knew it.
// For one lease after a loss of its data, a store grants no host more than it holds.
func (w *World) stranger(h *Host) lease.Amounts {
	k := w.known[h.Name]
	_, heard := h.Heard()
	switch {
	case !heard, k.instance != h.instance && w.Now >= h.unknown:
		h.strange, h.initial = true, h.Plan().Phase[2]
	case k.instance != h.instance, w.Now >= k.until:
		h.strange = false
	}
	if h.strange {
		return h.initial
	}
	return lease.Amounts{}
}

// lose reduces the hosts known to the store to left.
func (w *World) lose(left map[string]known) {
	ends := w.Now + w.Terms.Lease()
	for _, h := range w.Hosts {
		if w.known[h.Name].instance == h.instance && left[h.Name].instance != h.instance {
			h.unknown = ends
		}
	}
	w.known = left
	w.refresh("")
	w.At(w.Terms.Lease(), func() { w.refresh("") })
}

// known is the process known to the store under a name.
type known struct {
	instance int64
	until    int64 // end of the leases granted before the store knew it, ns
}
