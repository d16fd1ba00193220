package lease

// Clone returns a copy that shares nothing with s, as a replica of a server has it.
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
