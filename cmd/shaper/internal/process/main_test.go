package process

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

func TestMain(m *testing.M) {
	nettest.Isolate()
	m.Run()
}
