// Package rowstest runs policies on captures, and compares the decisions for each packet.
package rowstest

import (
	"context"
	"fmt"
	"os"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// Rows replays a capture through a policy, and returns what happened to each packet: class, color, departure
// and the bytes of the marked packet.
func Rows(p *dataplane.Policy, capture string) (rows []string, err error) {
	file, err := os.Open(capture)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	pl, err := pipeline.New(p)
	if err != nil {
		return nil, err
	}
	_, err = replay.Run(context.Background(), file, replay.Go{Pipeline: pl}, replay.Config{
		Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
			rows = append(rows, fmt.Sprint(v.Class, v.Color, v.Done, v.Departure, v.DSCPOut, p.Mark, p.Data))
			return nil
		},
	})
	return rows, err
}
