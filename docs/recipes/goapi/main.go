//go:build ignore

// Goapi is an HTTP server with a limit for each client address: 10 requests a second, and 20 at once.
//
//	go run main.go -listen 127.0.0.1:8080
package main

import (
	"flag"
	"log"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "listen at `ADDRESS`")
	every := flag.Duration("every", 100*time.Millisecond, "allow a request of each client in this `TIME`")
	burst := flag.Int64("burst", 20, "allow `N` requests of a client at once")
	flag.Parse()
	handler, err := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("hello\n")) // the client may have gone
	}), *every, *burst)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*listen, handler))
}

// limit answers 429 to clients that send too many requests, and says when to try again.
func limit(next http.Handler, every time.Duration, burst int64) (http.Handler, error) {
	profile, err := meter.TokenBucket{Rate: meter.Every(every), Burst: burst}.Profile()
	if err != nil {
		return nil, err
	}
	const addresses, shards = 1 << 16, 64
	clients, err := meter.NewShards[netip.Addr](profile, meter.TableConfig{Keys: addresses}, shards)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			http.Error(w, "no address", http.StatusBadRequest)
			return
		}
		d := clients.Decide(from.Addr().Unmap(), meter.Now(), 1) // 1 request
		w.Header().Set("RateLimit-Remaining", strconv.FormatInt(d.Remaining, 10))
		if d.Color == meter.Red {
			seconds := (d.RetryAfter + time.Second - 1) / time.Second
			w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	}), nil
}
