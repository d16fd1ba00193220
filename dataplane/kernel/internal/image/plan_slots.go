package image

// planSlots are the places in the map of plans without customers. A running program may still read
// a place just left by customers. Waiting for its end takes tens of ms, so it is done ahead, in
// another goroutine.
type planSlots struct {
	await func() error // waits until all programs running now have ended

	free    []uint32   // no program reads them
	freed   []uint32   // a program may read them
	waiting []uint32   // likewise, until ended receives
	ended   chan error // nil: nothing is waited for
}

// take returns a free place. It waits only if there is none.
func (p *planSlots) take() (uint32, error) {
	for {
		if p.ended == nil && len(p.freed) > 0 && 4*len(p.freed) >= len(p.free) {
			p.waiting, p.freed, p.ended = p.freed, nil, make(chan error, 1)
			go func(ended chan<- error) { ended <- p.await() }(p.ended)
		}
		if len(p.free) > 0 {
			select {
			case err := <-p.ended:
				if err := p.collect(err); err != nil {
					return 0, err
				}
			default:
			}
			at := p.free[len(p.free)-1]
			p.free = p.free[:len(p.free)-1]
			return at, nil
		}
		if p.ended == nil {
			return 0, ErrNoRoom
		}
		if err := p.collect(<-p.ended); err != nil {
			return 0, err
		}
	}
}

// collect frees the places whose programs have ended.
func (p *planSlots) collect(err error) error {
	if err == nil {
		p.free = append(p.free, p.waiting...)
	}
	p.waiting, p.ended = nil, nil
	return err
}
