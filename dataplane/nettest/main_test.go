package nettest

import "testing"

func TestMain(m *testing.M) {
	Isolate()
	m.Run()
}
