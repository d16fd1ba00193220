//go:build !linux

package tc

import (
	"errors"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
)

// Live returns an error.
func (Dialect) Live(string) (routers.Source, error) {
	return routers.Source{}, errors.New("reading the traffic control of an interface needs Linux")
}
