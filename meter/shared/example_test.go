package shared_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// useLimit lets a customer take 3 per hour, on any number of hosts.
func useLimit(ctx context.Context, w io.Writer, url string) error {
	client, err := shared.Open(shared.Server{URL: url})
	if err != nil {
		return err
	}
	defer client.Close()
	store, err := shared.New(client, shared.Config{Deadline: 10 * time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	hourly, err := store.Limiter(shared.Limit{
		Name:   "hourly",
		Params: meter.TokenBucket{Rate: meter.Per(3, time.Hour), Burst: 3},
		Fail:   shared.FailRescue, Share: 0.4,
	})
	if err != nil {
		return err
	}
	for range 4 {
		d, err := hourly.Decide(ctx, "customer-42", 1)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%v: allowed %v, %d left, retry after %v\n", d.Source, d.Allowed, d.Remaining,
			d.RetryAfter.Round(time.Minute))
	}
	return nil
}

func Example() {
	var out bytes.Buffer
	if err := useLimit(context.Background(), &out, "redis://127.0.0.1:6379"); err != nil {
		fmt.Println(err)
	}
	fmt.Print(out.String())
}

// No server listens at this port, so the local share decides: 1 of 3.
func Example_rescue() {
	var out bytes.Buffer
	if err := useLimit(context.Background(), &out, "redis://127.0.0.1:1"); err != nil {
		fmt.Println(err)
	}
	fmt.Print(out.String())
	// Output:
	// rescue: allowed true, 0 left, retry after 0s
	// rescue: allowed false, 0 left, retry after 50m0s
	// rescue: allowed false, 0 left, retry after 50m0s
	// rescue: allowed false, 0 left, retry after 50m0s
}

// TestExample runs Example with real servers.
func TestExample(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		var out bytes.Buffer
		if err := useLimit(context.Background(), &out, server.URL()); err != nil {
			t.Fatal(err)
		}
		const want = `store: allowed true, 2 left, retry after 0s
store: allowed true, 1 left, retry after 0s
store: allowed true, 0 left, retry after 0s
store: allowed false, 0 left, retry after 20m0s
`
		if out.String() != want {
			t.Errorf("got:\n%swant:\n%s", out.String(), want)
		}
	})
}
