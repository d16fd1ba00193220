package lease

// Sums returns the store's sums: the most that all hosts hold, and their rescue
// shares.
func (s *Store) Sums() (holds, rescues Amounts) { return s.sum, s.rescues }

// Members calls f for each host that the store knows.
func (s *Store) Members(f func(name string, instance int64, holds, rescue Amounts)) {
	for name, m := range s.hosts {
		f(name, m.instance, s.mostHeld(m), m.rescue)
	}
}
