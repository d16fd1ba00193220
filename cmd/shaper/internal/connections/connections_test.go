package connections

import (
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// TestConnectionsVictim checks which connection is closed for a new one, and when.
func TestConnectionsVictim(t *testing.T) {
	for _, row := range []struct {
		name string
		// states of the connections, set one second apart; the last one ten seconds ago
		states []http.ConnState
		victim int
	}{
		{"all new", []http.ConnState{http.StateNew, http.StateNew, http.StateNew}, 0},
		{"idle after a busy one", []http.ConnState{http.StateActive, http.StateIdle, http.StateIdle}, 1},
		{"new after busy ones", []http.ConnState{http.StateActive, http.StateActive, http.StateNew}, 2},
		{"all busy", []http.ConnState{http.StateActive, http.StateActive, http.StateActive}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(len(row.states))
				var clients []net.Conn
				for _, state := range row.states {
					client, server := net.Pipe()
					defer client.Close()
					clients = append(clients, client)
					c.admit(server)
					c.Changed(server, http.StateNew)
					c.Changed(server, state)
					time.Sleep(time.Second)
				}
				time.Sleep(10 * time.Second)
				_, server := net.Pipe()
				begin := time.Now()
				c.admit(server)
				if took := time.Since(begin); took != 0 {
					t.Errorf("waited %v although there was room", took)
				}
				for i, client := range clients {
					_ = client.SetReadDeadline(time.Now())
					_, err := client.Read(make([]byte, 1))
					if timeout, ok := err.(net.Error); (ok && timeout.Timeout()) != (i != row.victim) {
						t.Errorf("connection %d: got %v: want %d closed", i, err, row.victim)
					}
				}
				if len(c.open) != len(row.states) {
					t.Errorf("got %d connections open, want %d", len(c.open), len(row.states))
				}
			})
		})
	}
}

// TestConnectionsGrace checks that a new connection waits until another one has had its
// grace period, or ends.
func TestConnectionsGrace(t *testing.T) {
	for _, row := range []struct {
		name  string
		state http.ConnState
		after time.Duration // time after which the connection ends; 0: never
		want  time.Duration
	}{
		{"new", http.StateNew, 0, connectionGrace},
		{"idle", http.StateIdle, 0, connectionGrace},
		{"busy", http.StateActive, 0, responseGrace},
		{"busy and done", http.StateActive, responseGrace / 4, responseGrace / 4},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(1)
				_, first := net.Pipe()
				c.admit(first)
				c.Changed(first, row.state)
				if row.after > 0 {
					time.AfterFunc(row.after, func() { c.Changed(first, http.StateClosed) })
				}
				_, second := net.Pipe()
				begin := time.Now()
				c.admit(second)
				if took := time.Since(begin); took != row.want {
					t.Errorf("waited %v, want %v", took, row.want)
				}
				c.Changed(first, http.StateClosed) // the server finds out
				if len(c.open) != 1 || c.open[0].Conn != second {
					t.Errorf("open: got %v, want the second", c.open)
				}
			})
		})
	}
}
