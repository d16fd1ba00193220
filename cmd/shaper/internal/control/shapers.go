package control

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"
)

// answers keeps the latest answers by path and pattern of interfaces, those of one pattern beside those for
// all.
type answers struct {
	mu      sync.Mutex
	pattern string
	kept    map[[2]string]*kept
}

func newAnswers() *answers { return &answers{kept: map[[2]string]*kept{}} }

func (a *answers) of(path, pattern string) *kept {
	a.mu.Lock()
	defer a.mu.Unlock()
	if pattern != "" && pattern != a.pattern {
		maps.DeleteFunc(a.kept, func(key [2]string, _ *kept) bool { return key[1] != "" })
		a.pattern = pattern
	}
	key := [2]string{path, pattern}
	if a.kept[key] == nil {
		a.kept[key] = new(kept)
	}
	return a.kept[key]
}

// forget makes the next request read anew.
func (a *answers) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.kept)
}

func (h *handler) getStatus(w http.ResponseWriter, q *http.Request) error {
	return h.getShapers(w, q, "status", func(ctx context.Context, views bool) (any, error) {
		if views {
			return h.api.Views(ctx, false)
		}
		return h.api.Status(ctx)
	})
}

func (h *handler) getStats(w http.ResponseWriter, q *http.Request) error {
	return h.getShapers(w, q, "stats", func(ctx context.Context, views bool) (any, error) {
		if views {
			return h.api.Views(ctx, true)
		}
		return h.api.Stats(ctx)
	})
}

func (h *handler) getLinks(w http.ResponseWriter, q *http.Request) error {
	return h.getShapers(w, q, "links", h.api.Links)
}

// getShapers answers with what read returns.
func (h *handler) getShapers(
	w http.ResponseWriter, q *http.Request, what string,
	read func(ctx context.Context, views bool) (any, error),
) error {
	values := q.URL.Query()
	views := values.Has("view")
	if version := values.Get("view"); views && version != h.api.ViewVersion() {
		return badRequest("view %q: this process is another version of shaper than the command: use its version, "+
			"or restart it", version)
	}
	if views {
		what += " view"
	}
	body, err := h.answers.of(what, h.pattern).get(func() (any, error) { return read(q.Context(), views) })
	return respond(w, body, err)
}

// kept is an answer that is sent again for a short time, so clients that read often cannot keep the
// process busy.
type kept struct {
	mu   sync.Mutex
	at   time.Time
	body []byte
	err  error
}

// get returns the answer. Requests at the same time share one reading.
func (k *kept) get(read func() (any, error)) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.at) >= freshFor {
		value, err := read()
		if errors.Is(err, context.Canceled) {
			return nil, err // this client is gone, others are not
		}
		k.body, k.err = encode(value, err)
		k.at = time.Now()
	}
	return k.body, k.err
}
