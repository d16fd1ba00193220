package kernel

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Member is a plane in user space that takes part in the budgets of this host: its
// packets and those of shapers in the kernel are metered by the same states, exactly.
// It needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. It is for one direction of one
// plane.
type Member struct {
	Notes []string // what the last policy meant for budgets that others use, a line each

	user        budgetUser
	clock       func() int64
	clockOffset int64 // ns, of the kernel's clock behind the plane's; or a little more
	lock        lock  // which shows others that the process lives; from the first budget on
	maps        *memberMaps
	oldMaps     *memberMaps                   // that the policy in force may use still
	profiles    map[string]*bpf.ShaperProfile // of the policy in force, by budget
}

// joined is what a member has of the maps of budgets.
type memberMaps struct {
	maps   [2]*ebpf.Map
	id     ebpf.MapID
	memory []byte // of the first map
	loaded [2]*ebpf.Collection
}

// NewMember returns a member, who is called by the name of a device and a direction.
// clock is that of the plane's packets, in ns: it runs as CLOCK_MONOTONIC does, from
// any time on. The caller closes the member after the last packet.
func NewMember(device string, direction Direction, clock func() int64) *Member {
	return &Member{user: budgetUser{Process: os.Getpid(), Interface: device, Direction: direction}, clock: clock}
}

// members counts those of this process.
var members atomic.Uint32

// Join claims the budgets of a plan, and returns what meters packets by them, by stage. It
// refuses what Reload of a Shaper refuses. Budgets of the policy before stay until
// settle is called, when the new policy is in force; settle has to be called. The
// meters are for one goroutine at a time.
func (m *Member) Join(plan *dataplane.Plan) (meters map[int]dataplane.Shared, settle func() error, err error) {
	wishes, err := m.requests(plan)
	if err != nil {
		return nil, nil, err
	}
	if len(wishes) == 0 && m.lock.File == nil {
		return nil, func() error { return nil }, nil
	}
	if err := m.open(); err != nil {
		return nil, nil, err
	}
	s, err := newShares(m.user, wishes, false)
	if err != nil {
		return nil, nil, err
	}
	meters, err = m.register(s)
	if err != nil {
		return nil, nil, errors.Join(err, s.unlock())
	}
	return meters, func() error { return m.commit(s) }, nil
}

// wishes are those of the stages of a plan.
func (m *Member) requests(plan *dataplane.Plan) (out []*budgetRequest, err error) {
	var errs []error
	for _, i := range plan.Budgets() {
		if plan.Stages[i].Leased {
			continue
		}
		p, err := profileOf(&plan.Stages[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		w := budgetRequestFor(plan, i, &p)
		w.previous = m.profiles[w.Name]
		out = append(out, w)
	}
	return out, errors.Join(errs...)
}

// open takes the lock that shows that the process lives.
func (m *Member) open() (err error) {
	if m.lock.File != nil {
		return nil
	}
	if m.user.Namespace, err = currentNamespace(); err != nil {
		return err
	}
	if m.clockOffset, err = measureOffset(m.clock); err != nil {
		return err
	}
	m.user.File = fmt.Sprintf("%s%d-%d", memberFile, os.Getpid(), members.Add(1))
	m.lock, err = takeLock(m.user.File, unix.LOCK_EX) // no other member wants it, but sweep tries it
	return err
}

// behind is how far the kernel's clock is behind another. A time of that clock, less
// the result, is never a later one of the kernel's: tokens of the future are granted to
// nobody.
func measureOffset(clock func() int64) (ns int64, err error) {
	for best, try := uint64(math.MaxUint64), 0; try < 10; try++ {
		before, err := monotonic()
		if err != nil {
			return 0, err
		}
		at := clock()
		after, err := monotonic()
		if err != nil {
			return 0, err
		}
		if after-before < best {
			best, ns = after-before, at-int64(before)
		}
	}
	return ns, nil
}

// enter opens the maps, and enters the member into the registry.
func (m *Member) register(s *shares) (map[int]dataplane.Shared, error) {
	if len(s.list) == 0 {
		return nil, nil
	}
	now, err := monotonic()
	if err != nil {
		return nil, err
	}
	for _, g := range s.list {
		if g.isNew {
			if err := s.writeInitialState(g, now, g.initial); err != nil {
				return nil, err
			}
		}
	}
	j := m.maps
	if j == nil || j.id != s.Maps[0] {
		if j, err = openMemberMaps(s.maps); err != nil {
			return nil, err
		}
	}
	meters := map[int]dataplane.Shared{}
	for _, g := range s.list {
		meters[g.stage] = j.meter(g.record.Slot, m.clockOffset)
	}
	if err = s.register(); err != nil {
		if j != m.maps {
			j.close()
		}
		return nil, err
	}
	if j != m.maps {
		m.maps, m.oldMaps = j, m.maps
	}
	return meters, nil
}

func (m *Member) commit(s *shares) error {
	m.profiles = map[string]*bpf.ShaperProfile{}
	for _, g := range s.list {
		m.profiles[g.Name] = &g.Profile
	}
	if m.oldMaps != nil {
		m.oldMaps.close()
		m.oldMaps = nil
	}
	err := s.commit()
	m.Notes = s.notes()
	return errors.Join(err, s.unlock())
}

// Close leaves all budgets.
func (m *Member) Close() error {
	if m.lock.File == nil {
		return nil
	}
	if m.maps != nil {
		m.maps.close()
	}
	_, err := releaseBudgets(m.user.registryTemp(), m.user.File)
	return errors.Join(err, m.lock.Close())
}

// join opens what a member needs of maps.
func openMemberMaps(maps [2]*ebpf.Map) (j *memberMaps, err error) {
	j = &memberMaps{}
	defer func() {
		if err != nil {
			j.close()
		}
	}()
	if j.id, err = mapID(maps[0]); err != nil {
		return j, err
	}
	for i := range maps {
		if j.maps[i], err = maps[i].Clone(); err != nil {
			return j, err
		}
	}
	for i, name := range []string{bpf.ShareProgShaperShare, bpf.ShareProgShaperDraw} {
		if j.loaded[i], err = loadBudgetProgram(name, budgetMapsByName(maps)); err != nil {
			return j, err
		}
	}
	page := os.Getpagesize()
	size := (maxBudgets*int(unsafe.Sizeof(bpf.ShaperBudget{})) + page - 1) &^ (page - 1)
	j.memory, err = unix.Mmap(maps[0].FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		err = fmt.Errorf("map the budgets of the host into memory: %w", err)
	}
	return j, err
}

func (j *memberMaps) close() {
	if j.memory != nil {
		_ = unix.Munmap(j.memory)
	}
	for _, c := range j.loaded {
		if c != nil {
			c.Close()
		}
	}
	closeMaps(j.maps)
}
