package lease

// Sums are what the store counts: what all hosts hold.
func (s *Store) Sums() (holds Amounts) { return s.sum }
