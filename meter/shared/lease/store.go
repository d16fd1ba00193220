package lease

import "cmp"

// Store is the state of one budget in a store. Call takes the same steps, in the same arithmetic,
// as store.lua on a server. Times are in µs. The zero Store is a store after the loss of its state.
type Store struct {
	epoch              int64 // time of its first call
	time               int64 // time of the last call; it never goes back
	shift              int64 // difference of time from the server's clock
	learns             int64 // end of learning: until then no host is granted more than it holds
	tick               int64 // time of the last survey of all hosts; the fields below are as of then
	interval, deadline int64
	size               Amounts
	set                *Amounts   // size set by an operator
	smallest           string     // host with the smallest size, "" if all agree
	sum                Amounts    // maximum held by all hosts; updated by each call
	rescues            Amounts    // sum of the rescue shares open to hosts; updated by each call
	level              [2]float64 // rate per weight of hosts with a larger demand
	spare              [2]float64 // rate per weight in addition to the demand
	floor              [2]float64 // burst of a host without a rate
	burst              [2]float64 // burst per rate, in addition to floor
	rescue             amounts    // rescue share per weight
	curb               amounts    // part of the demand beyond the amounts kept by hosts in any case
	present, late      int64      // numbers of hosts
	server             string     // the server's replication ID
	replicas           int64
	hosts              map[string]*member
}

// amounts are fractional rates and bursts.
type amounts struct{ rate, burst [2]float64 }

// member is a host as the store knows it.
type member struct {
	name                string
	instance, sequence  int64
	seen                int64 // time of the last reply known to have reached the host
	called              int64 // time of its last call
	weight, floor       int64
	part                int64 // Terms.Rescue
	size, holds, rescue Amounts
	demand              [2]int64
}

// Server is a server's description of itself.
type Server struct {
	ID       string // changes if a replica takes over
	Replicas int64
}

// mostHeld returns the maximum held by m at the last survey: its reported amount or, if the host is
// late, also its rescue share.
func (s *Store) mostHeld(m *member) Amounts {
	switch {
	case m.called >= s.tick || s.tick-m.seen < s.lateness():
		return m.holds
	case s.tick-m.called >= s.lease():
		return m.rescue
	}
	return m.holds.Max(m.rescue)
}

func (s *Store) lateness() int64 { return 3 * s.interval }

// lease returns the time after which a lease is over on any host's clock.
func (s *Store) lease() int64 { return 3*s.interval + 2*s.deadline + s.interval/4 }

// Call processes a host's request at a time of the server's clock.
func (s *Store) Call(now int64, server Server, r *Request) Reply {
	interval, deadline := r.Terms.Interval/1000, r.Terms.Deadline/1000
	if s.epoch == 0 {
		*s = Store{
			epoch: now, time: now, interval: interval, deadline: deadline, size: r.Terms.Size,
			server: server.ID, set: s.set, hosts: map[string]*member{},
		}
		s.learns = now + s.lease()
	}
	now = s.clock(now)
	m := s.hosts[r.Host]
	if interval != s.interval || deadline != s.deadline {
		if now-s.tick < s.lease() {
			return Reply{Refused: Interval}
		}
		s.interval, s.deadline = interval, deadline
		s.learns = now + s.lease()
		s.tick = min(s.tick, now-interval)
	}
	switch {
	case m == nil:
		if len(s.hosts) >= MaxHosts {
			return Reply{Refused: TooMany}
		}
		m = &member{name: r.Host, instance: r.Instance}
		s.hosts[r.Host] = m
	case m.instance != r.Instance:
		if now-m.called < s.lease() {
			return Reply{Refused: NameUsed}
		}
		s.uncount(m)
		*m = member{name: r.Host, instance: r.Instance}
	case r.Sequence <= m.sequence:
		return Reply{Refused: Stale}
	default:
		s.uncount(m)
	}
	if r.Leave {
		delete(s.hosts, r.Host)
		return Reply{Time: now, Epoch: s.epoch}
	}
	before, first := m.demand, m.sequence == 0
	m.sequence, m.called = r.Sequence, now
	if r.Seen <= now { // otherwise it is a reply of another store, or of this one before it lost its data
		m.seen = max(m.seen, r.Seen)
	}
	m.weight, m.floor, m.part = r.Terms.Weight, r.Terms.Floor, r.Terms.Rescue
	m.size, m.holds, m.rescue, m.demand = r.Terms.Size, r.Holds, r.Rescue, r.Demand
	deaf := now-m.seen >= s.lateness()
	if deaf {
		m.holds = m.holds.Max(m.rescue)
	}
	s.sum = s.sum.Plus(m.holds)
	if s.set == nil {
		s.size = s.size.Min(m.size)
	}
	if now-s.tick >= s.interval/2 {
		s.survey(now, server)
		before = m.demand
	}
	learning := now < s.learns
	share := s.grant(m, r.Holds, before, learning || deaf && !first)
	rescue := s.rescueOf(m, r.Rescue, learning)
	s.sum = s.sum.Minus(m.holds)
	m.holds, m.rescue = m.holds.Max(share), m.rescue.Max(rescue)
	if deaf {
		m.holds = m.holds.Max(m.rescue)
	}
	s.sum = s.sum.Plus(m.holds)
	s.rescues = s.rescues.Plus(m.rescue)
	return Reply{
		Time: now, Epoch: s.epoch, Share: share, Rescue: rescue, Spare: s.spareOf(m), Size: s.size,
		Hosts: int64(len(s.hosts)), Late: min(s.late, int64(len(s.hosts))), Learning: learning,
		Replicas: s.replicas, Smallest: s.smallest,
	}
}

// clock returns the time of a call. It never goes back: if the server's clock does, time continues
// from the last call. Hosts call all the time. So after a long time without a call, either the
// clock has jumped or no host could call, and silent hosts do not count as late.
func (s *Store) clock(server int64) int64 {
	now := server + s.shift
	switch {
	case now < s.time:
		s.shift += s.time - now
		now = s.time
		s.learns = now + s.lease()
	case now > s.time+2*s.interval:
		s.learns = now + s.lease()
	}
	s.time = now
	return now
}

// survey examines all hosts. It runs twice per interval, so the average cost of
// a call does not depend on the number of hosts.
func (s *Store) survey(now int64, server Server) {
	if server.ID != s.server {
		s.server, s.learns = server.ID, now+s.lease()
	}
	s.tick, s.replicas = now, server.Replicas
	s.sum, s.present, s.late, s.smallest = Amounts{}, 0, 0, ""
	var reserved Amounts
	var weight, weights, floor, part int64
	var smallest *member
	same := true
	for _, m := range s.hosts {
		holds := s.mostHeld(m)
		s.sum = s.sum.Plus(holds)
		weights += m.weight
		if now-m.seen >= s.lateness() {
			s.late++
			reserved = reserved.Plus(holds)
		} else {
			s.present++
			weight += m.weight
			floor = max(floor, m.floor)
		}
		if smallest == nil {
			smallest, s.size, part = m, m.size, m.part
			continue
		}
		same = same && m.size == smallest.size
		if less(m, smallest) {
			smallest = m
		}
		s.size, part = s.size.Min(m.size), min(part, m.part)
	}
	if !same {
		s.smallest = smallest.name
	}
	if s.set != nil {
		s.size = *s.set
	}
	free := s.size.Minus(reserved).Max(Amounts{})
	for i := range 2 {
		reserve := free.Rate[i] / 200
		rest := s.fill(i, float64(free.Rate[i]-reserve), float64(weight))
		// with many hosts, half of the rest is kept for hosts whose demand rises first
		rest = float64(rest*float64(s.present+1)) / float64(2*max(s.present, 1))
		s.spare[i] = (float64(reserve) + rest) / float64(max(weight, 1))
		s.floor[i] = float64(min(floor, free.Burst[i]/(4*max(s.present, 1))))
		s.burst[i] = (float64(
			free.Burst[i]) - float64(s.present)*s.floor[i]) / float64(max(free.Rate[s.paid(i)], 1))
		s.rescue.rate[i] = float64(s.size.Rate[i]) * float64(part) / million / float64(max(weights, 1))
		s.rescue.burst[i] = float64(s.size.Burst[i]) * float64(part) / million / float64(max(weights, 1))
	}
	s.curb = amounts{[2]float64{1, 1}, [2]float64{1, 1}}
	if over := s.sum.Minus(s.size).Max(Amounts{}); over != (Amounts{}) {
		s.curbs(free)
	}
}

// curbs computes the shares if more is granted than the budget holds. If the lease of a host ends
// without another call, the host keeps the smaller of its share and its rescue share until it rises
// to the rescue share. So no more than the difference can be redistributed.
func (s *Store) curbs(free Amounts) {
	var keep, beyond Amounts
	for _, m := range s.hosts {
		if s.tick-m.seen < s.lateness() {
			k := m.holds.Min(m.rescue)
			keep = keep.Plus(k)
			beyond = beyond.Plus(s.fair(m, m.demand).Minus(k).Max(Amounts{}))
		}
	}
	part := func(free, beyond int64) float64 {
		return min(float64(max(free, 0))/float64(max(beyond, 1)), 1)
	}
	free = free.Minus(keep)
	for i := range 2 {
		s.curb.rate[i] = part(free.Rate[i], beyond.Rate[i])
		s.curb.burst[i] = part(free.Burst[i], beyond.Burst[i])
	}
}

// less orders hosts by the sizes in their policies.
func less(a, b *member) bool {
	x, y := a.size, b.size
	return cmp.Or(
		cmp.Compare(x.Rate[0], y.Rate[0]), cmp.Compare(x.Rate[1], y.Rate[1]),
		cmp.Compare(x.Burst[0], y.Burst[0]), cmp.Compare(x.Burst[1], y.Burst[1]), cmp.Compare(a.name, b.name),
	) < 0
}

// paid returns the index of the rate of bucket i: the rate of C if E is without one (RFC 2697).
func (s *Store) paid(i int) int {
	if s.size.Rate[i] == 0 {
		return 0
	}
	return i
}

// fill computes the level of rate i: the rate per weight of the hosts wanting more, while all
// others get their demand (max-min fair). It returns the rate that no host wants.
func (s *Store) fill(i int, rate, weight float64) float64 {
	level := rate / max(weight, 1)
	for range maxRounds {
		rest, wanting := rate, 0.0
		for _, m := range s.hosts {
			switch {
			case s.tick-m.seen >= s.lateness():
			case float64(m.demand[i]) <= float64(m.weight)*level:
				rest -= float64(m.demand[i])
			default:
				wanting += float64(m.weight)
			}
		}
		if wanting == 0 {
			s.level[i] = rate
			return rest
		}
		if rest/wanting <= level {
			break
		}
		level = rest / wanting
	}
	s.level[i] = level
	return 0
}

// maxRounds limits the search for a level. Each round satisfies at least one more host. Then a
// remainder counts as free.
const maxRounds = 16

// fair returns the share of a host with a demand.
func (s *Store) fair(m *member, demand [2]int64) (a Amounts) {
	spare := s.spareOf(m)
	for i := range 2 {
		a.Rate[i] = min(min(demand[i], int64(float64(m.weight)*s.level[i]))+spare[i], s.size.Rate[i])
	}
	for i := range 2 {
		a.Burst[i] = int64(s.floor[i] + float64(s.burst[i]*float64(a.Rate[s.paid(i)])))
		a.Burst[i] = min(a.Burst[i], s.size.Burst[i])
	}
	return a
}

// spareOf returns the rates a host may keep in addition to its demand.
func (s *Store) spareOf(m *member) (spare [2]int64) {
	for i := range spare {
		spare[i] = int64(float64(m.weight) * s.spare[i])
	}
	return spare
}

// rescueOf returns the new rescue share of a host that has one of has. All rescue shares together
// stay within the budget: late hosts keep a share granted when there were fewer hosts. A learning
// store does not know all hosts yet.
func (s *Store) rescueOf(m *member, has Amounts, learning bool) (a Amounts) {
	for i := range 2 {
		a.Rate[i] = int64(float64(m.weight) * s.rescue.rate[i])
		a.Burst[i] = int64(float64(m.weight) * s.rescue.burst[i])
	}
	if learning {
		a = a.Min(has)
	}
	return a.Min(s.size.Minus(s.rescues).Max(Amounts{}))
}

// uncount subtracts a host from the sums.
func (s *Store) uncount(m *member) {
	s.sum, s.rescues = s.sum.Minus(s.mostHeld(m)), s.rescues.Minus(m.rescue)
}

// grant returns the share of a host holding at most holds. before is the demand for which the level
// was computed. More may be granted than the budget holds, if a late host may rise to its
// rescue share; then every host gives back its part.
func (s *Store) grant(m *member, holds Amounts, before [2]int64, frozen bool) Amounts {
	free := s.size.Minus(s.sum)
	want := s.fair(m, m.demand)
	must := s.fair(m, before)
	limit := func(want, must, holds, rescue, counted, free int64, curb float64) int64 {
		switch {
		case free < 0:
			if keep := min(holds, rescue); must > keep {
				must = keep + int64(curb*float64(must-keep))
			}
			return min(want, must, holds)
		case frozen:
			return min(want, holds)
		}
		return min(want, counted+free)
	}
	for i := range 2 {
		want.Rate[i] = limit(want.Rate[i], must.Rate[i], holds.Rate[i], m.rescue.Rate[i], m.holds.Rate[i],
			free.Rate[i], s.curb.rate[i])
		want.Burst[i] = limit(want.Burst[i], must.Burst[i], holds.Burst[i], m.rescue.Burst[i],
			m.holds.Burst[i], free.Burst[i], s.curb.burst[i])
	}
	return want
}
