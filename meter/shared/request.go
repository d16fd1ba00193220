package shared

import (
	_ "embed"
	"fmt"
	"strconv"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

//go:embed store.lua
var storeScript string

// key is where a budget is kept. What is in braces selects the slot of a cluster.
func key(budget string) string { return "{shaper:" + budget + "}:lease" }

// arguments appends a request in the order of store.lua.
func arguments(args []any, r *lease.Request) []any {
	t := &r.Terms
	args = append(args, r.Host, r.Instance, r.Sequence, r.Seen, t.Interval/1000, t.Deadline/1000, t.Weight, t.Floor, t.Rescue)
	for _, a := range []lease.Amounts{t.Size, r.Holds, r.Rescue} {
		args = append(args, a.Rate[0], a.Rate[1], a.Burst[0], a.Burst[1])
	}
	leave := "0"
	if r.Leave {
		leave = "1"
	}
	return append(args, r.Demand[0], r.Demand[1], leave)
}

// reply reads what store.lua returns for one budget.
func reply(v any) (r lease.Reply, err error) {
	list, ok := v.([]any)
	if !ok {
		return r, fmt.Errorf("the store answered %T, not a list", v)
	}
	numbers := make([]int64, 21)
	for i, v := range list[:min(len(list), len(numbers))] {
		if numbers[i], ok = v.(int64); !ok {
			return r, fmt.Errorf("the store answered %q for number %s", v, strconv.Itoa(i))
		}
	}
	n := numbers
	switch len(list) {
	case 1:
		r.Refused = lease.Refusal(n[0])
		if r.Refused <= lease.Granted || r.Refused > lease.Stale {
			return r, fmt.Errorf("the store answered %d", n[0])
		}
	case 3:
		r.Time, r.Epoch = n[1], n[2]
	case 22:
		amounts := func(i int) lease.Amounts {
			return lease.Amounts{Rate: [2]int64{n[i], n[i+1]}, Burst: [2]int64{n[i+2], n[i+3]}}
		}
		r = lease.Reply{
			Time: n[1], Epoch: n[2], Share: amounts(3), Rescue: amounts(7), Spare: [2]int64{n[11], n[12]}, Size: amounts(13),
			Hosts: n[17], Late: n[18], Learning: n[19] == 1, Replicas: n[20],
		}
		r.Smallest, _ = list[21].(string)
	default:
		return r, fmt.Errorf("the store answered a list of %d", len(list))
	}
	return r, nil
}
