//go:build linux && amd64

package chaos

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// liar is a server of budgets whose replies have the right form and wrong content.
type liar struct {
	listener net.Listener
	replies  atomic.Int64
}

// liarSocket is where policies with a v in the name keep their budget.
const liarSocket = "/run/liar"

// newLiar starts a server in the world. Its replies are those of the seed.
func (w *world) newLiar(seed uint64) (*liar, error) {
	l := &liar{}
	var err error
	w.inside(func() {
		_ = os.Remove(liarSocket)
		l.listener, err = net.Listen("unix", liarSocket)
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for n := uint64(0); ; n++ {
			conn, err := l.listener.Accept()
			if err != nil {
				return
			}
			go l.serve(conn, rand.New(rand.NewPCG(seed, n)))
		}
	}()
	return l, nil
}

// serve answers the commands of one connection.
func (l *liar) serve(conn net.Conn, random *rand.Rand) {
	defer conn.Close()
	for in := bufio.NewReader(conn); ; {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		var answer string
		switch strings.ToUpper(command) {
		case "HELLO":
			answer = "-ERR unknown command\r\n"
		case "CLIENT", "SELECT", "AUTH":
			answer = "+OK\r\n"
		case "PING":
			answer = "+PONG\r\n"
		default:
			answer = lie(random)
			l.replies.Add(1)
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// readCommand reads a command and returns its first word.
func readCommand(in *bufio.Reader) (string, error) {
	number := func(prefix string) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), prefix))
	}
	words, err := number("*")
	first := ""
	for i := 0; i < words && err == nil; i++ {
		var n int
		if n, err = number("$"); err != nil {
			break
		}
		text := make([]byte, n+2)
		if _, err = io.ReadFull(in, text); i == 0 && err == nil {
			first = string(text[:n])
		}
	}
	return first, err
}

// lie is a reply with a list of one budget: mostly 22 values as of store.lua, with some of them wrong.
func lie(random *rand.Rand) string {
	wrong := func() int64 {
		list := []int64{
			0, 1, -1, 2, 100_000_000, 1 << 40, 1 << 62, math.MaxInt64, math.MinInt64, int64(random.Uint64()),
			time.Now().UnixMicro(),
		}
		return list[random.IntN(len(list))]
	}
	switch random.IntN(10) {
	case 0:
		return fmt.Sprintf("*1\r\n*1\r\n:%d\r\n", random.IntN(20)-3)
	case 1:
		return fmt.Sprintf("*1\r\n*3\r\n:0\r\n:%d\r\n:%d\r\n", wrong(), wrong())
	}
	values := []int64{0, time.Now().UnixMicro(), 5}
	amounts := []int64{1_000_000, 0, 20_000, 0}
	values = append(values, amounts...) // share
	values = append(values, amounts...) // rescue share
	values = append(values, 0, 0)       // spare
	values = append(values, amounts...) // size
	values = append(values, 2, 0, 0, 0) // hosts, late, learning, replicas
	for range random.IntN(4) {          // at times none: the server also tells the truth
		values[1+random.IntN(len(values)-1)] = wrong()
	}
	out := "*1\r\n*22\r\n"
	for _, v := range values {
		out += fmt.Sprintf(":%d\r\n", v)
	}
	name := []string{"", "h", strings.Repeat("x", 1000), "\x1b[31m\n"}[random.IntN(4)]
	return out + fmt.Sprintf("$%d\r\n%s\r\n", len(name), name)
}

// lying are shapers whose share comes from a liar.
func lying() []*scenario {
	var list []*scenario
	for seed := range uint64(4) {
		list = append(list, &scenario{
			name: fmt.Sprintf("liar-%d", seed), victim: attach("av", "tcx", "egress"),
			within: within("egress"), ready: 1, then: (*attempt).beLiedTo, active: policyA, want: nothing,
			may: []string{nothing}, liar: seed + 1,
		})
	}
	return list
}

// lies is the number of replies to wait for.
const lies = 100

// beLiedTo waits for a number of replies. The victim must shape meanwhile, and say so.
func (a *attempt) beLiedTo() {
	if !eventually(patience, func() bool { return a.server.replies.Load() >= lies || !a.victim.alive() }) {
		a.problem("liar: %d replies after %v", a.server.replies.Load(), patience)
	}
	if got := a.w.prober.inForce(egress); got != policyA && !a.ending() {
		a.problem("liar: %s in force after %d replies, want %s: %s", got, a.server.replies.Load(), policyA,
			a.victim.stderr())
	}
	if !a.victim.alive() && a.f.kind == "none" {
		a.problem("liar: the victim has ended after %d replies: exit %d: %s", a.server.replies.Load(),
			a.victim.code(), a.victim.stderr())
	}
	a.terminate()
}
