package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

const (
	storeCalls  = 100 // calls of each side in succession
	storeBlocks = 20  // blocks per round, alternating sides
	storeKeys   = 64  // keys per script
	storeRate   = 1_000_000
)

// stored has a server and the limiters of both sides.
type stored struct {
	client  *redis.Client
	store   *shared.Backend
	limiter *shared.Limiter
	peer    *redis_rate.Limiter
	many    []shared.Request
}

// storeFigures compares decisions at a server with those of redis_rate. All requests are
// allowed, which is more work.
func storeFigures() []figure {
	var figures []figure
	for _, name := range []string{"redis", "valkey"} {
		server := sync.OnceValues(func() (*stored, error) { return serve(name + "-server") })
		figures = append(
			figures,
			inTurn(timeRatio("redis_rate, "+name+": server time of a decision", 0.9, 0.75, nil, nil), server,
				(*stored).one, (*stored).theirs, (*stored).serverTime),
			inTurn(timeRatio(fmt.Sprintf(
				"redis_rate, %s: %d keys of a slot in one script, each, against one call", name,
				storeKeys), 0.2, 0.1, nil, nil), server, (*stored).each, (*stored).theirs, wallTime),
		)
	}
	return figures
}

// serve starts a server with the limiters of both sides.
func serve(program string) (*stored, error) {
	client, _, err := startServer(program)
	if err != nil {
		return nil, err
	}
	s := &stored{client: client}
	s.peer = redis_rate.NewLimiter(s.client)
	if s.store, err = shared.New(s.client, shared.Config{Deadline: 10 * time.Second}); err != nil {
		return nil, err
	}
	s.limiter, err = s.store.Limiter(shared.Limit{
		Name: "second", Params: meter.TokenBucket{Rate: meter.Per(storeRate, time.Second), Burst: storeRate},
	})
	for i := range storeKeys {
		s.many = append(s.many,
			shared.Request{Limiter: s.limiter, Budget: "customer-42", Key: strconv.Itoa(i), N: 1})
	}
	return s, err
}

// startServer starts a server that ends with this process, or when it is killed.
func startServer(program string, options ...string) (client *redis.Client, kill func(), err error) {
	if _, err := exec.LookPath(program); err != nil {
		return nil, nil, fmt.Errorf("install %s", program)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	addr := free.Addr().String()
	_ = free.Close()
	_, port, _ := strings.Cut(addr, ":")
	cmd := exec.Command(program,
		append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", "/"}, options...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the kernel kills the server when this thread ends
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, nil, err
	}
	kill = func() { _ = cmd.Process.Kill(); <-ended }
	client = redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	for end := time.Now().Add(10 * time.Second); client.Ping(context.Background()).Err() != nil; {
		if time.Now().After(end) {
			kill()
			return nil, nil, fmt.Errorf("%s does not answer", program)
		}
	}
	return client, kill, nil
}

// commandStat returns the number of calls of a command on a server, and their total time in µs.
func commandStat(client *redis.Client, command string) (calls, us float64, err error) {
	info, err := client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		return 0, 0, err
	}
	_, stat, _ := strings.Cut(info, "cmdstat_"+command+":")
	if _, err := fmt.Sscanf(stat, "calls=%f,usec=%f", &calls, &us); err != nil {
		return 0, 0, fmt.Errorf("no %s: %w", command, err)
	}
	return calls, us, nil
}

var errRefused = errors.New("a decision was not allowed")

func (s *stored) one() (int, error) {
	d, err := s.limiter.Decide(context.Background(), "customer-42", 1)
	if err == nil && !d.Allowed {
		err = errRefused
	}
	return 1, errors.Join(err, d.Err)
}

func (s *stored) each() (int, error) {
	decisions, err := s.store.Each(context.Background(), s.many)
	for _, d := range decisions {
		if !d.Allowed {
			return 0, errors.Join(errRefused, d.Err)
		}
	}
	return len(decisions), err
}

func (s *stored) theirs() (int, error) {
	d, err := s.peer.Allow(context.Background(), "customer-42", redis_rate.PerSecond(storeRate))
	if err == nil && d.Allowed == 0 {
		err = errRefused
	}
	return 1, err
}

// serverTime returns the server's time for f, in ns: the time of its scripts.
func (s *stored) serverTime(f func() error) (float64, error) {
	ctx := context.Background()
	if err := s.client.ConfigResetStat(ctx).Err(); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	_, us, err := commandStat(s.client, "evalsha")
	return us * 1e3, err
}

func wallTime(_ *stored, f func() error) (float64, error) {
	begin := time.Now()
	err := f()
	return float64(time.Since(begin)), err
}

// inTurn alternates both sides within a round, so that other load on the machine slows both.
func inTurn(
	f figure, server func() (*stored, error), ours, other func(*stored) (int, error),
	clock func(*stored, func() error) (float64, error),
) figure {
	var beside float64
	f.ours = func() (float64, error) {
		s, err := server()
		if err != nil {
			return 0, err
		}
		var ns, done [2]float64
		for range storeBlocks {
			for i, side := range []func(*stored) (int, error){ours, other} {
				took, err := clock(s, func() error {
					for range storeCalls {
						n, err := side(s)
						if err != nil {
							return err
						}
						done[i] += float64(n)
					}
					return nil
				})
				if err != nil {
					return 0, err
				}
				ns[i] += took
			}
		}
		beside = ns[1] / done[1]
		return ns[0] / done[0], nil
	}
	f.other = func() (float64, error) { return beside, nil }
	return f
}
