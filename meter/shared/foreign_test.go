package shared

import (
	"fmt"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// TestForeignKey stores another type under the key of a limit. The store must
// not count as lost.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		s := newTestStore(t, server.Client(), Config{})
		for i, p := range family {
			l := newTestLimiter(t, s, Limit{Name: fmt.Sprint("limit", i), Params: p})
			noError(t, server.Client().HSet(ctx, l.key("spoilt", ""), "field", "value").Err())
			d, err := l.Decide(ctx, "spoilt", 1)
			if err != nil || d.Source != FromClosed || d.Err == nil ||
				!strings.Contains(d.Err.Error(), "WRONGTYPE") {
				t.Errorf("%T: got %+v, %v, want FromClosed and WRONGTYPE", p, d, err)
			}
			if d, err := l.Decide(ctx, "customer-42", 1); err != nil || d.Source != FromStore {
				t.Errorf("%T, another key: got %+v, %v, want a decision of the store", p, d, err)
			}
		}
		if stats := s.Stats(); stats.Lost != 0 || stats.Local != uint64(len(family)) {
			t.Errorf("got %+v, want no loss and %d local decisions", stats, len(family))
		}
	})
}

// TestTLS uses a server that accepts only TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		s := newTestStore(t, server.Client(), Config{})
		d, err := newTestLimiter(t, s, Limit{Name: "limit", Params: family[0]}).Decide(ctx, "customer-42", 1)
		if err != nil || d.Source != FromStore {
			t.Errorf("got %+v, %v, want a decision of the store", d, err)
		}
		untrusted := newTestStore(t, openClient(t, server.URL()), Config{})
		d, err = newTestLimiter(t, untrusted,
			Limit{Name: "limit", Params: family[0]}).Decide(ctx, "customer-42", 1)
		if err != nil || d.Err == nil || !strings.Contains(d.Err.Error(), "certificate") {
			t.Errorf("without the authority: got %+v, %v, want an error about the certificate", d, err)
		}
	}, storetest.TLS(), storetest.Password(secretWord))
}
