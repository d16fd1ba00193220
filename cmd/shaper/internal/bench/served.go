package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
)

const (
	changeRounds = 500
	manyChanges  = 10_000
)

// served is a shaper run with the API, and a client of it.
type served struct {
	*wire
	client http.Client
}

// whileServing runs shaper run with the API while f runs.
func (w *wire) whileServing(f func(s *served) (float64, error), flags ...string) (float64, error) {
	socket := filepath.Join(w.dir, "api.sock")
	s := &served{wire: w, client: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
	defer s.client.CloseIdleConnections()
	args := append([]string{w.shaper, "run", "v0", "--control", socket}, flags...)
	return w.whileRunning(func(int) (float64, error) {
		time.Sleep(time.Second) // meanwhile it reads all customers once, for changes
		return f(s)
	}, args...)
}

// change makes changes in one call, and returns the time until they are in force.
func (s *served) change(list ...control.Change) (time.Duration, error) {
	body, err := json.Marshal(list)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	r, err := s.client.Post("http://shaper/v1/changes", "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	answer, err := io.ReadAll(r.Body)
	took := time.Since(begin)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, answer)
	}
	return took, err
}

// changeTime makes one change at a time, 200 a second, and returns a quantile of their times, in ms.
func (s *served) changeTime(quantile float64, of func(i int) control.Change) (float64, error) {
	list := make([]time.Duration, changeRounds)
	for i := range list {
		time.Sleep(5 * time.Millisecond)
		var err error
		if list[i], err = s.change(of(i)); err != nil {
			return 0, err
		}
	}
	slices.Sort(list)
	return float64(list[int(quantile*float64(len(list)))]) / 1e6, nil
}

// rateOfCustomer changes a rate of the customer under flood.
func rateOfCustomer(i int) control.Change {
	return control.Change{
		Kind: "customer", Name: "2", Parameters: map[string]string{"cir": fmt.Sprintf("%dmbit", 40+i%2)},
	}
}

func rateOfLink(i int) control.Change {
	return control.Change{
		Kind: "link", Name: "uplink", Parameters: map[string]string{"rate": fmt.Sprintf("%dmbit", 10+i%2)},
	}
}

// flooded measures while two processes send packets of 64 bytes to a customer.
func flooded(f func(s *served) (float64, error)) func(s *served) (float64, error) {
	return func(s *served) (float64, error) {
		over := make(chan error, 2)
		for range cap(over) {
			go func() {
				_, err := s.blast(64, 0, 5*time.Second)
				over <- err
			}()
		}
		time.Sleep(500 * time.Millisecond) // until both send
		v, err := f(s)
		return v, errors.Join(err, <-over, <-over)
	}
}

// changeMany changes many customers in one call, and returns the time, in s.
func (s *served) changeMany() (float64, error) {
	list := make([]control.Change, manyChanges)
	for i := range list {
		list[i] = rateOfCustomer(i)
		list[i].Name = fmt.Sprint(i)
	}
	took, err := s.change(list...)
	return took.Seconds(), err
}

// setMany changes many customers by one command, and returns the time, in s.
func (s *served) setMany() (float64, error) {
	b := &strings.Builder{}
	for i := range manyChanges {
		fmt.Fprintf(b, "customer %d cir=%dmbit\n", i, 40+i%2)
	}
	path := filepath.Join(s.dir, "changes.txt")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return 0, err
	}
	return s.commandSeconds("set", "v0", "--file", path)
}

// topCustomers returns the time of shaper stats --customers, in s.
func (s *served) topCustomers() (float64, error) {
	return s.commandSeconds("stats", "v0", "--customers", "--top", "20")
}

// commandSeconds runs a command of shaper, and returns the time, in s.
func (s *served) commandSeconds(args ...string) (float64, error) {
	begin := time.Now()
	_, err := runIn(s.a, append([]string{s.shaper}, args...)...)
	return time.Since(begin).Seconds(), err
}
