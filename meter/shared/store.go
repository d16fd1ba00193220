package shared

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Config says how a Store deals with its server. The zero Config is the default.
type Config struct {
	// Deadline of each call: no decision takes longer. 0 is 50 ms; from 1 ms to 10 s.
	Deadline time.Duration
	// Retry is the longest pause between two attempts to find a lost store. 0 is 1 s;
	// from 10 ms to a minute. Pauses begin at 10 ms and double, each shortened at random
	// by up to a half, so that hosts do not come back all at once.
	Retry time.Duration
	// OnLost and OnFound are called when decisions begin to be local, and when they are
	// the store's again: once each, in turn, by a goroutine that no decision waits for.
	// In a cluster each primary is lost and found by itself.
	OnLost  func(Loss)
	OnFound func(Loss)
}

// Loss is a time without the store.
type Loss struct {
	Addr  string        // of the store, or of the primary of a cluster
	Err   error         // why: without passwords
	Since time.Time     // when the first call failed
	After time.Duration // how long it was lost, for OnFound
}

// Stats are counts of a Store since New.
type Stats struct {
	Lost, Found uint64 // times that the store was
	Local       uint64 // decisions that were not the store's
	Losses      []Loss // those that last
}

// Store makes decisions at a server of Redis or Valkey, and locally while it is lost. It is
// safe for concurrent use.
type Store struct {
	client  redis.UniversalClient
	config  Config
	scripts *scripts
	// clock is the time in µs that scripts are handed instead of the server's: for tests.
	clock func() int64

	places      sync.Map // string: *place
	lost, found atomic.Uint64
	local       atomic.Uint64
	closing     context.Context
	close       context.CancelFunc
	monitors    sync.WaitGroup
	mu          sync.Mutex // of Add to monitors beside Wait
}

// place is a server that can be lost by itself.
type place struct {
	addr string
	loss atomic.Pointer[Loss]
}

const (
	firstPause      = 10 * time.Millisecond
	defaultDeadline = 50 * time.Millisecond
	defaultRetry    = time.Second
)

// New returns a store. It connects to nothing: a store that cannot be reached is lost with
// the first decision. The client has to end calls at their deadline: its options must have
// ContextTimeoutEnabled, as those of Open do.
func New(client redis.UniversalClient, config Config) (*Store, error) {
	return newStore(client, config, live, nil)
}

func newStore(client redis.UniversalClient, config Config, s *scripts, clock func() int64) (*Store, error) {
	if config.Deadline == 0 {
		config.Deadline = defaultDeadline
	}
	if config.Retry == 0 {
		config.Retry = defaultRetry
	}
	var errs []error
	if client == nil {
		errs = append(errs, fault("Client", "is missing: Open makes one"))
	} else if !endsCalls(client) {
		errs = append(errs, fault("Client", "does not end calls at their deadline: set ContextTimeoutEnabled in its options"))
	}
	if config.Deadline < time.Millisecond || config.Deadline > 10*time.Second {
		errs = append(errs, fault("Deadline", "of %v is not between 1ms and 10s", config.Deadline))
	}
	if config.Retry < firstPause || config.Retry > time.Minute {
		errs = append(errs, fault("Retry", "of %v is not between %v and 1m", config.Retry, firstPause))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	store := &Store{client: client, config: config, scripts: s, clock: clock}
	store.closing, store.close = context.WithCancel(context.Background())
	return store, nil
}

// endsCalls says whether the context's deadline reaches the connection. Clients of other
// types are trusted.
func endsCalls(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return c.Options().ContextTimeoutEnabled
	}
	return true
}

// Close ends the search for a lost store, and returns once no OnLost or OnFound runs. It
// leaves the client open. Make no decisions after it.
func (s *Store) Close() {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	s.monitors.Wait()
}

// Stats returns the counts.
func (s *Store) Stats() Stats {
	stats := Stats{Lost: s.lost.Load(), Found: s.found.Load(), Local: s.local.Load()}
	s.places.Range(func(_, p any) bool {
		if loss := p.(*place).loss.Load(); loss != nil {
			now := *loss
			now.After = time.Since(now.Since)
			stats.Losses = append(stats.Losses, now)
		}
		return true
	})
	return stats
}

// unknown is the place of keys of a cluster whose slots are not known.
const unknown = "cluster"

// place returns what may be lost with a key: in a cluster the primary of its slot. While a
// cluster's slots are not known it is lost as a whole.
func (s *Store) place(ctx context.Context, key string) (*place, error) {
	switch c := s.client.(type) {
	case *redis.Client:
		addr := c.Options().Addr
		if addr == "FailoverClient" { // as go-redis names it
			addr = "primary named by Sentinel"
		}
		return s.placeOf(addr), nil
	case *redis.ClusterClient:
		if p, ok := s.places.Load(unknown); ok && p.(*place).loss.Load() != nil {
			return p.(*place), nil
		}
		primary, err := c.MasterForKey(ctx, key)
		if err != nil {
			return s.placeOf(unknown), err
		}
		return s.placeOf(primary.Options().Addr), nil
	}
	return s.placeOf("store"), nil
}

func (s *Store) placeOf(addr string) *place {
	p, ok := s.places.Load(addr)
	if !ok {
		p, _ = s.places.LoadOrStore(addr, &place{addr: addr})
	}
	return p.(*place)
}

// lose has decisions of a place be local from now on, and begins to look for it.
func (s *Store) lose(p *place, budget string, err error) {
	loss := &Loss{Addr: p.addr, Err: err, Since: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil || !p.loss.CompareAndSwap(nil, loss) {
		return
	}
	s.lost.Add(1)
	s.monitors.Go(func() { s.monitor(p, loss, budget) })
}

// monitor looks for a lost place until it decides again, or Close.
func (s *Store) monitor(p *place, loss *Loss, budget string) {
	if s.config.OnLost != nil {
		s.config.OnLost(*loss)
	}
	for pause := firstPause; ; pause = min(2*pause, s.config.Retry) {
		select {
		case <-time.After(pause - rand.N(pause/2)):
		case <-s.closing.Done():
			return
		}
		if c, ok := s.client.(*redis.ClusterClient); ok {
			c.ReloadState(s.closing) // it would keep a dead primary for ClusterStateReloadInterval
		}
		if s.probe(budget) == nil {
			break
		}
	}
	now := *loss
	now.After = time.Since(now.Since)
	s.found.Add(1)
	if s.config.OnFound != nil {
		s.config.OnFound(now)
	}
	p.loss.Store(nil) // last, so that OnLost of the next loss comes after it
}

// probe makes a decision as others do, about a key of its own beside those of a budget. It
// writes: a full or read-only server is lost as well.
func (s *Store) probe(budget string) error {
	ctx, cancel := context.WithTimeout(s.closing, s.config.Deadline)
	defer cancel()
	const burst, perMicrosecond, cycle = 1, 1, 1 << 16
	keys := []string{"{shaper:" + budget + "}:probe"}
	return s.scripts.one[bucketKind].Run(ctx, s.client, keys, s.arguments([]any{burst, perMicrosecond, cycle, 1, 1})...).Err()
}

// arguments adds the time, if scripts are handed one.
func (s *Store) arguments(args []any) []any {
	if s.clock == nil {
		return args
	}
	us := s.clock()
	return append(args, us/1e6, us%1e6)
}
