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

// Config holds the options of a Backend. The zero Config is the default.
type Config struct {
	// Deadline limits the time of each call, and so of each decision: 1 ms to
	// 10 s. 0: 50 ms.
	Deadline time.Duration
	// Retry is the longest pause between two attempts to reach a lost store: 10
	// ms to 1 minute. 0: 1 s. The first pause is 10 ms and each doubles the
	// previous one. Each is shortened at random by up to a half, so that hosts
	// do not retry in step.
	Retry time.Duration
	// OnLost is called when decisions become local, OnFound when the store
	// makes them again. Each is called once per outage, one after the other, in
	// a separate goroutine. The primaries of a cluster are lost and found
	// independently.
	OnLost  func(Loss)
	OnFound func(Loss)
}

// Loss describes an outage of the store.
type Loss struct {
	Addr  string        // address of the server
	Err   error         // error of the first failed call; contains no password
	Since time.Time     // time of that call
	After time.Duration // duration of the outage, set for OnFound and in Stats
}

// Stats are counts since New.
type Stats struct {
	Lost, Found uint64 // outages begun and outages ended
	Local       uint64 // decisions made without the store
	Losses      []Loss // outages in progress
}

// Backend makes decisions at a Redis or Valkey server, and locally while the server is lost. It
// is safe for concurrent use.
type Backend struct {
	client  redis.UniversalClient
	config  Config
	scripts *scripts
	// clock replaces the server's clock in tests, in µs. It is nil otherwise.
	clock func() int64

	places      sync.Map // string: *place
	lost, found atomic.Uint64
	local       atomic.Uint64
	closing     context.Context
	close       context.CancelFunc
	monitors    sync.WaitGroup
	mu          sync.Mutex // orders monitors.Go before monitors.Wait
}

// place is a server that can be lost independently of others.
type place struct {
	addr string
	loss atomic.Pointer[Loss]
}

const (
	firstPause      = 10 * time.Millisecond
	defaultDeadline = 50 * time.Millisecond
	defaultRetry    = time.Second
)

// New returns a Backend. It opens no connection: an unreachable server is noticed by the first
// decision. The client's options must set ContextTimeoutEnabled, as Open does; without it calls
// would not end at their deadline. The error joins all *meter.FieldErrors.
func New(client redis.UniversalClient, config Config) (*Backend, error) {
	return newStore(client, config, live(), nil)
}

func newStore(client redis.UniversalClient, config Config, s *scripts, clock func() int64) (*Backend, error) {
	if config.Deadline == 0 {
		config.Deadline = defaultDeadline
	}
	if config.Retry == 0 {
		config.Retry = defaultRetry
	}
	var errs []error
	if client == nil {
		errs = append(errs, fault("Client", "is missing: use Open"))
	} else if !endsCalls(client) {
		errs = append(errs,
			fault("Client", "does not end calls at their deadline: set ContextTimeoutEnabled in its options"))
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
	store := &Backend{client: client, config: config, scripts: s, clock: clock}
	store.closing, store.close = context.WithCancel(context.Background())
	return store, nil
}

// endsCalls reports whether calls end at the context's deadline. Unknown client types are
// trusted.
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

// Close stops the monitor and waits until OnLost and OnFound have returned. It does not close
// the client. The Store must not be used afterwards.
func (s *Backend) Close() {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	s.monitors.Wait()
}

// Stats returns the counts.
func (s *Backend) Stats() Stats {
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

// unknown is the place of all keys while the slots of a cluster are unknown.
const unknown = "cluster"

// place returns the server of a key: in a cluster, the primary of its slot.
func (s *Backend) place(ctx context.Context, key string) (*place, error) {
	switch c := s.client.(type) {
	case *redis.Client:
		addr := c.Options().Addr
		if addr == "FailoverClient" { // set by go-redis
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

func (s *Backend) placeOf(addr string) *place {
	p, ok := s.places.Load(addr)
	if !ok {
		// a server names the others of its cluster
		p, _ = s.places.LoadOrStore(addr, &place{addr: printable(addr)})
	}
	return p.(*place)
}

// lose makes the decisions of a place local and starts its monitor.
func (s *Backend) lose(p *place, budget string, err error) {
	loss := &Loss{Addr: p.addr, Err: err, Since: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil || !p.loss.CompareAndSwap(nil, loss) {
		return
	}
	s.lost.Add(1)
	s.monitors.Go(func() { s.monitor(p, loss, budget) })
}

// monitor probes a lost place until it decides again or the Backend is closed.
func (s *Backend) monitor(p *place, loss *Loss, budget string) {
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
			c.ReloadState(s.closing) // otherwise it calls a dead primary for ClusterStateReloadInterval
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
	p.loss.Store(nil) // after OnFound, so that the next OnLost cannot overtake it
}

// probe makes a decision about its own key in the budget's slot. It writes the
// key, because a full or read-only server counts as lost.
func (s *Backend) probe(budget string) error {
	ctx, cancel := context.WithTimeout(s.closing, s.config.Deadline)
	defer cancel()
	const burst, perMicrosecond, cycle = 1, 1, 1 << 16
	keys := []string{"{shaper:" + budget + "}:probe"}
	return guard(func() error {
		return s.scripts.one[bucketKind].Run(ctx, s.client, keys,
			s.arguments([]any{burst, perMicrosecond, cycle, 1, 1})...).Err()
	})
}

// arguments appends the time of a test's clock.
func (s *Backend) arguments(args []any) []any {
	if s.clock == nil {
		return args
	}
	us := s.clock()
	return append(args, us/1e6, us%1e6)
}
