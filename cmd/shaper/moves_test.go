package main

import (
	"bytes"
	"encoding/csv"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// movesPolicy has a site of 24 Mbit/s with two access points. Its customers and its queue get 12 Mbit/s each
// in movesCapture, and the limits are not reached.
const movesPolicy = `links:
  site: {rate: 24mbit}
  ap-7: {link: site, rate: 16mbit, guarantee: 1mbit}
  ap-9: {link: site, rate: 20mbit}
  other: {rate: 9mbit}
queues:
  rest: {link: ap-7, rate: 9mbit, limit: 4s, fair: flow, codel: false}
plans:
  gold: {queue: {rate: 10mbit, weight: 1, limit: 4s, fair: flow, codel: false}}
customers: {file: customers.csv}
classes:
  - {name: customers, per: customer, meter: plan}
  - {name: rest, green: {queue: rest}}
`

const movesCustomers = `customer,address,plan,link
a,192.0.2.1,gold,ap-7
b,192.0.2.2,gold,ap-7
c,192.0.2.3,gold,ap-9
`

func movesCapture(t *testing.T) string {
	return writeTraffic(t, sender{1, 12}, sender{2, 12}, sender{3, 12}, sender{9, 12})
}

// writeMoves writes the policy and changes, and returns the arguments of a replay with them.
func writeMoves(t *testing.T, capture, changes string) []string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"policy.yaml": movesPolicy, "customers.csv": movesCustomers, "changes.txt": changes,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{
		"replay", capture, "--policy", filepath.Join(dir, "policy.yaml"),
		"--changes", filepath.Join(dir, "changes.txt"), "--decisions", "-",
	}
}

// departures replays a capture and returns the departures of each leaf, ns after the first packet. No packet is
// dropped, and those of a leaf stay in order.
func departures(t *testing.T, args []string) map[string][]int64 {
	t.Helper()
	var out, stderr bytes.Buffer
	if code := run(args, cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	list, begin := map[string][]int64{}, number(rows[1][1])
	for _, row := range rows[1:] {
		leaf, at := row[decisionKey], number(row[9])-begin
		if leaf == "" {
			leaf = "rest"
		}
		before := list[leaf]
		switch {
		case row[6] != "queue":
			t.Fatalf("packet %s: %s (%s), want no drops", row[0], row[6], row[10])
		case before != nil && before[len(before)-1] > at:
			t.Fatalf("packet %s of %s overtakes the one before", row[0], leaf)
		}
		list[leaf] = append(before, at)
	}
	return list
}

// TestMoves makes changes under load, in virtual time. No packet is lost, packets of a flow stay in order, and
// then each leaf has the rate of its new place. The wanted rates follow from the rules for guarantees, priorities
// and weights: before the change, c has 10 Mbit/s, and a, b and the queue share 14.
func TestMoves(t *testing.T) {
	t.Parallel()
	capture := movesCapture(t)
	for name, test := range map[string]struct {
		changes string
		want    string // rates in Mbit/s
		most    string // sums that may not be above a rate, with the level of the node
	}{
		"none":           {"", "a 14/3, b 14/3, c 10, rest 14/3", "c 10 3, a+b+rest 16 2"},
		"customer moves": {"customer a link=ap-9", "a 23/4, c 23/4, b 25/4, rest 25/4", "a 10 3, a+c 20 2, b+rest 16 2"},
		"customer moves with another rate": {
			"customer a link=ap-9 rate=20mbit weight=3", "a 69/8, c 23/8, b 25/4, rest 25/4", "a 20 3, a+c 20 2",
		},
		"customer to a slower rate": {
			"customer a link=ap-9 rate=4mbit", "a 4, c 15/2, b 25/4, rest 25/4", "a 4 3, c 10 3, a+c 20 2",
		},
		"customer moves up":       {"customer a link=site", "a 23/3, b 13/3, rest 13/3, c 23/3", "a 10 2"},
		"guarantee of a customer": {"customer a weight=2 guarantee=8mbit", "a 10, b 2, rest 2, c 10", "a 10 3"},
		"rate of a link":          {"link ap-7 rate=12mbit", "a 4, b 4, rest 4, c 10", "a+b+rest 12 2"},
		"guarantee of a link":     {"link ap-7 guarantee=15mbit weight=2", "a 16/3, b 16/3, rest 16/3, c 8", "a+b+rest 16 2"},
		"priority of a link":      {"link ap-9 priority=1", "a 16/3, b 16/3, rest 16/3, c 8", "a+b+rest 16 2"},
		"rate of the root":        {"link site rate=12mbit", "a 13/6, b 13/6, rest 13/6, c 11/2", "a+b+rest 16 2"},
		"queue":                   {"queue rest rate=3mbit guarantee=3mbit", "a 11/2, b 11/2, rest 3, c 10", "rest 3 3"},
		"priority of a queue":     {"queue rest priority=1", "a 7, b 7, rest 0, c 10", "a 10 3, b 10 3"},
		"weight of a queue":       {"queue rest weight=5", "a 5/2, b 5/2, rest 9, c 10", "rest 9 3"},
		"there and back": {
			strings.Repeat("customer a link=ap-9\nat=300ms customer a reset\nat=300ms ", 40) + "link site rate=24mbit",
			"a 14/3, b 14/3, c 10, rest 14/3", "c 10 3",
		},
		"several": {
			"customer a link=site weight=2\nat=310ms customer c link=ap-7\nat=320ms link ap-7 rate=9mbit",
			"a 10, b 3, c 3, rest 3", "b+c+rest 9 2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.changes != "" {
				test.changes = "at=300ms " + test.changes
			}
			args := writeMoves(t, capture, test.changes)
			list := departures(t, args)
			const from, to = 500e6, 900e6 // ns, when all are backlogged
			bits := func(leaves string) *big.Rat {
				sum := int64(0)
				for _, leaf := range strings.Split(leaves, "+") {
					for _, at := range list[leaf] {
						if at >= from && at < to {
							sum += 1200 * 8
						}
					}
				}
				return big.NewRat(sum, 1)
			}
			during := func(rate string) *big.Rat { // bits
				mbit, ok := new(big.Rat).SetString(rate)
				if !ok {
					t.Fatal(rate)
				}
				return mbit.Mul(mbit, big.NewRat((to-from)/1e3, 1))
			}
			const levels = 3
			for _, want := range strings.Split(test.want, ", ") {
				words := strings.Fields(want)
				lag := new(big.Rat).Sub(bits(words[0]), during(words[1]))
				if lag.Abs(lag).Cmp(big.NewRat(2*levels*1200*8, 1)) > 0 {
					t.Errorf("%s got %s bits, want %s, give or take two packets a level", words[0],
						bits(words[0]).FloatString(0), during(words[1]).FloatString(0))
				}
			}
			for _, most := range strings.Split(test.most+", a+b+c+rest 24 1", ", ") {
				words := strings.Fields(most)
				level, err := strconv.ParseInt(words[2], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				bound := new(big.Rat).Add(during(words[1]), big.NewRat(level*1200*8, 1))
				if bits(words[0]).Cmp(bound) > 0 {
					t.Errorf("%s got %s bits, want at most %s", words[0], bits(words[0]).FloatString(0),
						bound.FloatString(0))
				}
			}
		})
	}
}

// TestMovesRefused checks the errors of changes that a replay does not make.
func TestMovesRefused(t *testing.T) {
	t.Parallel()
	capture := movesCapture(t)
	for change, want := range map[string]string{
		"customer a link=ap-9":                                         "changes.txt:1: want the time of the change, such as at=1.5s, before it",
		"at=1 customer a link=ap-9":                                    "changes.txt:1: ",
		"at=1s customer x link=ap-9":                                   `changes.txt:1: no customer "x" in the policy`,
		"at=1s customer a link=x":                                      `changes.txt:1: customer "a": no link named "x"`,
		"at=1s customer a link=other":                                  `plan "gold" has its queue in another tree of links: change the policy and reload it`,
		"at=1s customer a link=site for=1h":                            "changes.txt:1: for= is not for replays: write another change at that time",
		"at=1s link ap-7 link=ap-9":                                    `changes.txt:1: link "ap-7": link cannot be changed, only rate, guarantee, priority, weight`,
		"at=1s link site weight=2":                                     "guarantee, priority and weight are for a link below another one",
		"at=1s link ap-7 weight=0":                                     `changes.txt:1: link "ap-7": weight 0 is not between 1 and 1000`,
		"at=1s link ap-7 weight=x":                                     `changes.txt:1: link "ap-7": weight: "x" is not a number`,
		"at=1s link ap-7 guarantee=17mbit":                             `changes.txt:1: link "ap-7": guarantee of 17mbit is above the rate of 16mbit`,
		"at=1s queue rest guarantee=10mbit":                            `changes.txt:1: queue "rest": guarantee of 10mbit is above the rate of 9mbit`,
		"at=2s queue rest rate=1mbit\nat=1s queue rest rate=2mbit":     "changes.txt:2: at=1s is before the change above",
		"at=1s queue rest guarantee=9mbit\nat=2s link ap-7 rate=8mbit": `changes.txt:2: link "ap-7": rate of 8mbit is below the sum of the guarantees of its queues: lower them`,
	} {
		var out, stderr bytes.Buffer
		code := run(writeMoves(t, capture, change), cli.Streams{Out: &out, Err: &stderr})
		if code != cli.ExitUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit %d: %s, want %s", change, code, &stderr, want)
		}
	}
}
