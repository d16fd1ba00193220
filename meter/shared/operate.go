package shared

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

//go:embed show.lua
var showScript string

//go:embed set.lua
var setScript string

//go:embed drop.lua
var dropScript string

// Errors of the functions for operators.
var (
	ErrNoBudget = errors.New("the store has no such budget")
	ErrNoHost   = errors.New("the budget has no such host")
)

// BudgetInfo is a store's view of a budget.
type BudgetInfo struct {
	Name     string
	Size     lease.Amounts  // in force
	Set      *lease.Amounts // set by SetBudget; nil: the hosts' policies decide
	Smallest string         // host whose policy has the smallest size, "" if all agree
	Held     lease.Amounts  // the most that all hosts together can hold
	Late     int            // number of late hosts
	Learning bool           // no share grows until all earlier leases have ended
	Replicas int64          // number of the server's replicas, -1: unknown
	Began    time.Time      // first call for the budget, by the store's clock
	Called   time.Duration  // time since the last call of any host
	Interval time.Duration  // time between calls of a host
	Deadline time.Duration  // time limit of a call
	Lease    time.Duration  // a host that has not called for this long holds at most its rescue share
	Hosts    []HostInfo     // sorted by name
}

// HostInfo is a store's view of a host of a budget.
type HostInfo struct {
	Name   string
	Share  lease.Amounts // the most it can hold
	Rescue lease.Amounts // its rescue share
	Size   lease.Amounts // size in its policy
	Demand [2]int64      // rates
	Weight int64
	Floor  int64         // lease.Terms.Floor
	Called time.Duration // time since its last call
	Late   bool          // no reply for three intervals
}

// Limits of ListBudgets.
const (
	maxBudgets = 1 << 20
	maxPages   = 1 << 20 // of each server; keys of other programs leave pages empty
	pageSize   = 1000    // keys
)

// ListBudgets returns the names of the budgets in a store, sorted. If something else uses such
// keys, a name may be impossible for a budget; ShowBudget returns an error for it.
func ListBudgets(ctx context.Context, client redis.UniversalClient) ([]string, error) {
	var mu sync.Mutex
	var names []string
	scan := func(ctx context.Context, c *redis.Client) error {
		cursor := uint64(0)
		for range maxPages {
			keys, next, err := c.Scan(ctx, cursor, key("*"), pageSize).Result()
			if err != nil {
				return err
			}
			mu.Lock()
			for _, k := range keys {
				names = append(names, strings.TrimSuffix(strings.TrimPrefix(k, keyBegin), keyEnd))
			}
			n := len(names)
			mu.Unlock()
			if n > maxBudgets {
				return fmt.Errorf("the store replied with more than %d budgets", maxBudgets)
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
		return fmt.Errorf("the store replied with more than %d pages of keys", maxPages)
	}
	var err error
	switch c := client.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, scan)
	case *redis.Client:
		err = scan(ctx, c)
	default:
		err = fmt.Errorf("%T is not a client returned by Open", client)
	}
	if err != nil {
		return nil, fmt.Errorf("list budgets: %w", explain(err, operateRights))
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// ShowBudget returns a store's current view of a budget.
func ShowBudget(ctx context.Context, client redis.UniversalClient, name string) (*BudgetInfo, error) {
	fail := func(err error) (*BudgetInfo, error) {
		return nil, fmt.Errorf("show budget %s: %w", name, explain(err, operateRights))
	}
	if err := checkMember(name); err != nil {
		return nil, err
	}
	v, err := client.EvalRO(ctx, layoutScript+showScript, []string{key(name)}).Slice()
	if errors.Is(err, redis.Nil) {
		return fail(ErrNoBudget)
	}
	if err != nil {
		return fail(err)
	}
	b := &BudgetInfo{Name: name, Replicas: -1}
	l := listOf(v)
	state, set := l.list(), l.list()
	if len(set.values) > 0 {
		size := set.amounts(1)
		b.Set, b.Size = &size, size
	}
	if len(state.values) > 0 {
		b.Began, b.Called = time.UnixMicro(state.time()), state.duration()
		b.Interval, b.Deadline, b.Lease = state.duration(), state.duration(), state.duration()
		b.Learning, b.Replicas, b.Late = state.flag(), state.number(-1, lease.MaxNumber),
			int(state.number(0, lease.MaxHosts))
		b.Smallest, b.Size, b.Held = state.name(), state.amounts(1), state.amounts(lease.MaxHosts)
	}
	l.err = cmp.Or(l.err, state.err, set.err)
	for len(l.values) > 0 && l.err == nil {
		h := l.list()
		b.Hosts = append(b.Hosts, HostInfo{
			Name: h.name(), Called: h.duration(), Late: h.flag(), Weight: h.number(1, lease.MaxWeight),
			Floor:  h.number(0, lease.MaxBurst),
			Demand: [2]int64{h.number(0, lease.MaxRate), h.number(0, lease.MaxRate)}, Share: h.amounts(1),
			Rescue: h.amounts(1), Size: h.amounts(1),
		})
		l.err = cmp.Or(l.err, h.err)
	}
	if n := len(b.Hosts); n > lease.MaxHosts || b.Late > n {
		l.check(fmt.Errorf("%d hosts, %d of them late", n, b.Late))
	}
	if l.err != nil {
		return fail(l.err)
	}
	sort.Slice(b.Hosts, func(i, j int) bool { return b.Hosts[i].Name < b.Hosts[j].Name })
	return b, nil
}

// SetBudget sets the size of a budget for all hosts, overriding their policies,
// until UnsetBudget. It takes effect within one interval. If the size shrinks,
// the part held by a late host becomes free when its lease ends. The budget
// need not have hosts yet.
func SetBudget(ctx context.Context, client redis.UniversalClient, name string, size lease.Amounts) error {
	if err := cmp.Or(checkMember(name), size.Check()); err != nil {
		return err
	}
	args := []any{size.Rate[0], size.Rate[1], size.Burst[0], size.Burst[1]}
	if err := client.Eval(ctx, layoutScript+setScript, []string{key(name)}, args...).Err(); err != nil {
		return fmt.Errorf("set budget %s: %w", name, explain(err, operateRights))
	}
	return nil
}

// UnsetBudget removes the size set by SetBudget: the hosts' policies decide again. It
// reports whether a size was set.
func UnsetBudget(ctx context.Context, client redis.UniversalClient, name string) (bool, error) {
	if err := checkMember(name); err != nil {
		return false, err
	}
	was, err := client.Eval(ctx, layoutScript+setScript, []string{key(name)}).Bool()
	if err != nil {
		return false, fmt.Errorf("unset budget %s: %w", name, explain(err, operateRights))
	}
	return was, nil
}

// DropHost removes a host from a store, which frees its rescue share for others. It fails if the
// host called within a lease. A host that runs, but cannot reach the store, still uses its rescue
// share.
func DropHost(ctx context.Context, client redis.UniversalClient, budget, host string) error {
	fail := func(err error) error {
		return fmt.Errorf("drop host %s of budget %s: %w", host, budget, explain(err, operateRights))
	}
	if err := cmp.Or(checkMember(budget), checkMember(host)); err != nil {
		return err
	}
	v, err := client.Eval(ctx, layoutScript+dropScript, []string{key(budget)}, host).Slice()
	if errors.Is(err, redis.Nil) {
		return fail(ErrNoHost)
	}
	if err != nil {
		return fail(err)
	}
	l := listOf(v)
	ago, within, dropped := l.duration(), l.duration(), l.flag()
	if l.err == nil && !dropped {
		l.err = fmt.Errorf("it called %v ago: stop its shaper, then retry after %v",
			ago.Round(time.Millisecond), within)
	}
	if l.err != nil {
		return fail(l.err)
	}
	return nil
}
