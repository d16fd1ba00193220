package lease

// Clone returns a deep copy of s, such as the data of a replica.
func (s *Store) Clone() Store {
	c := *s
	if s.set != nil {
		set := *s.set
		c.set = &set
	}
	c.hosts = make(map[string]*member, len(s.hosts))
	for name, m := range s.hosts {
		copied := *m
		c.hosts[name] = &copied
	}
	return c
}
