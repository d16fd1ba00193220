package meter_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// A meter for each source address. The least recently used address is evicted for a new
// one.
func ExampleTable() {
	profile, _ := meter.TokenBucket{Rate: meter.BitRate(8_000_000), Burst: 1500}.Profile()
	table, err := meter.NewTable[netip.Addr](profile, meter.TableConfig{Keys: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, source := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "192.0.2.1"} {
		fmt.Println(source, table.Color(netip.MustParseAddr(source), 0, 1000, meter.Green))
	}
	fmt.Printf("%+v\n", table.Stats())
	// Output:
	// 192.0.2.1 green
	// 192.0.2.1 red
	// 192.0.2.2 green
	// 2001:db8::1 green
	// 192.0.2.1 green
	// {Keys:2 Evicted:2 Refused:0}
}

// Shards is a Table for several goroutines.
func ExampleShards() {
	profile, _ := meter.TokenBucket{Rate: meter.BitRate(8_000_000), Burst: 1500}.Profile()
	table, err := meter.NewShards[netip.Addr](profile, meter.TableConfig{Keys: 1 << 20}, 1024)
	if err != nil {
		fmt.Println(err)
		return
	}
	var workers sync.WaitGroup
	for i := range 100 {
		workers.Go(func() {
			source := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
			table.Color(source, 0, 1000, meter.Green)
		})
	}
	workers.Wait()
	fmt.Println(table.Len(), "sources")
	// Output:
	// 100 sources
}

// limited allows each client address one request a second, and three at once. now is a
// monotonic clock in ns.
func limited(next http.Handler, now func() int64) (http.Handler, error) {
	profile, err := meter.TokenBucket{Rate: meter.Per(1, time.Second), Burst: 3}.Profile()
	if err != nil {
		return nil, err
	}
	clients, err := meter.NewShards[netip.Addr](profile, meter.TableConfig{Keys: 1 << 16}, 64)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			http.Error(w, "no address", http.StatusBadRequest)
			return
		}
		d := clients.Decide(from.Addr().Unmap(), now(), 1) // 1 "byte" is a request
		w.Header().Set("RateLimit-Remaining", fmt.Sprint(d.Remaining))
		if d.Color == meter.Red {
			seconds := (d.RetryAfter + time.Second - 1) / time.Second
			w.Header().Set("Retry-After", fmt.Sprint(int64(seconds)))
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	}), nil
}

// A handler that limits each client address, with Retry-After.
func ExampleShards_Decide() {
	var now int64
	handler, err := limited(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		func() int64 { return now })
	if err != nil {
		fmt.Println(err)
		return
	}
	for i, from := range []string{
		"192.0.2.1:5000", "192.0.2.1:5001", "192.0.2.1:5002", "192.0.2.1:5003", "[2001:db8::1]:5000",
		"192.0.2.1:5004",
	} {
		if i == 5 {
			now = int64(time.Second)
		}
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.RemoteAddr = from
		handler.ServeHTTP(w, r)
		fmt.Printf("%s %d, %s left, retry after %q s\n", from, w.Code, w.Header().Get("RateLimit-Remaining"),
			w.Header().Get("Retry-After"))
	}
	// Output:
	// 192.0.2.1:5000 200, 2 left, retry after "" s
	// 192.0.2.1:5001 200, 1 left, retry after "" s
	// 192.0.2.1:5002 200, 0 left, retry after "" s
	// 192.0.2.1:5003 429, 0 left, retry after "1" s
	// [2001:db8::1]:5000 200, 2 left, retry after "" s
	// 192.0.2.1:5004 200, 0 left, retry after "" s
}

// The keys of a table can be listed, tested and deleted.
func ExampleTable_All() {
	profile, _ := meter.TokenBucket{Rate: meter.ByteRate(1000), Burst: 5000}.Profile()
	table, _ := meter.NewTable[string](profile, meter.TableConfig{Keys: 100})
	table.Color("alice", 0, 4000, meter.Green)
	table.Color("bob", 0, 500, meter.Green)
	for user, m := range table.All() {
		if left, _ := m.Tokens(0); left < 2000 {
			fmt.Println(user, "has", left, "left")
		}
	}
	fmt.Println(table.Peek("alice", 0, 2000, meter.Green))
	fmt.Println(table.RetryAfter("alice", 0, 2000))
	fmt.Println(table.Delete("alice"), table.Len())
	fmt.Println(table.Peek("alice", 0, 2000, meter.Green))
	// Output:
	// alice has 1000 left
	// red
	// 1s true
	// true 1
	// green
}

// Customers have plans of their own, and are never evicted. Everybody else has the profile of the
// table.
func ExampleTable_Set() {
	stranger, _ := meter.TokenBucket{Rate: meter.BitRate(1_000_000), Burst: 1500}.Profile()
	home, _ := meter.TRTCM{
		CIR: meter.BitRate(50_000_000), CBS: 1 << 20, PIR: meter.BitRate(60_000_000), PBS: 1 << 20,
	}.Profile()
	table, err := meter.NewTable[netip.Addr](stranger, meter.TableConfig{Keys: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	customer := netip.MustParseAddr("192.0.2.1")
	if err := table.Set(customer, 0, home); err != nil {
		fmt.Println(err) // all keys are customers
	}
	for i := range 100_000 { // addresses of strangers
		table.Color(netip.AddrFrom4([4]byte{198, byte(i >> 16), byte(i >> 8), byte(i)}), 0, 1500, meter.Green)
	}
	fmt.Printf("%+v\n", table.Decide(customer, 0, 1500))
	fmt.Println(table.Delete(customer), table.Stats())
	// Output:
	// {Color:green Remaining:1047076 RetryAfter:0s ResetAfter:240µs}
	// true {999 99001 0}
}

// A table is saved, and restored when the program starts again.
func ExampleTable_AppendBinary() {
	profile, _ := meter.TokenBucket{Rate: meter.ByteRate(1000), Burst: 5000}.Profile()
	config := meter.TableConfig{Keys: 1000}
	table, _ := meter.NewTable[netip.Addr](profile, config)
	source := netip.MustParseAddr("192.0.2.1")
	table.Color(source, 0, 5000, meter.Green)
	saved, err := table.AppendBinary(nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	again, _ := meter.NewTable[netip.Addr](profile, config)
	if err := again.UnmarshalBinary(saved); err != nil {
		fmt.Println("starts empty:", err)
	}
	tc, _, _ := again.Tokens(source, int64(2*time.Second))
	fmt.Println(tc, "bytes")
	// Output:
	// 2000 bytes
}
