package walk

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
)

// followPipeline compares an engine with the pipeline: the verdict, bytes and mark of every
// packet, the tokens of every meter after every batch, and all counters at the end. It returns
// the number of compared packets.
func followPipeline(t *testing.T, policy *dataplane.Policy, e processor, packets []dataplane.Packet) int {
	t.Helper()
	pl, err := pipeline.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	if _, live := e.(*hooked); !live { // live programs do not measure it
		e.(interface{ MeasureLack(time.Duration) }).MeasureLack(0)
		pl.MeasureLack(0)
	}
	packets = acceptedPackets(e, packets)
	compared := 0
	for len(packets) > 0 {
		batch := packets[:min(e.Batch(), len(packets))]
		packets = packets[len(batch):]
		verdicts := make([]dataplane.Verdict, len(batch))
		same := make([]dataplane.Packet, len(batch))
		for i := range batch {
			same[i] = batch[i]
			same[i].Data = slices.Clone(batch[i].Data)
		}
		if err := e.Process(batch, verdicts); err != nil {
			t.Error(err)
			return compared
		}
		for i := range batch {
			var want dataplane.Verdict
			before := slices.Clone(same[i].Data)
			pl.Process(&same[i], &want)
			compared++
			if verdicts[i] != want {
				t.Errorf("packet %d:\ngot  %+v\nwant %+v\n%s", compared, verdicts[i], want,
					dumpPacket(&same[i], before))
				return compared
			}
			if want.Done.Dropped() {
				continue
			}
			if !bytes.Equal(batch[i].Data, same[i].Data) || batch[i].Mark != same[i].Mark {
				t.Errorf("packet %d has other bytes or another mark:\ngot  %x mark %d\nwant %x mark %d\n%s",
					compared, batch[i].Data, batch[i].Mark, same[i].Data, same[i].Mark,
					dumpPacket(&same[i], before))
				return compared
			}
		}
		for i := range pl.Plan().Stages {
			if pl.Plan().Stages[i].Customers {
				continue // the tokens are in the customers
			}
			tc, te, err := e.Tokens(i)
			if err != nil {
				t.Fatal(err)
			}
			if wantC, wantE := pl.Tokens(i); tc != wantC || te != wantE {
				t.Errorf("after packet %d, at %d: meter %q %+v has %d and %d tokens, want %d and %d",
					compared, pl.Now(), pl.Plan().Stages[i].Name, pl.Plan().Stages[i].Source.Params, tc, te,
					wantC, wantE)
				return compared
			}
		}
	}
	got, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if want := pl.Stats(); !slices.Equal(got, want) {
		t.Errorf("counters:\ngot  %+v\nwant %+v", got, want)
	}
	return compared
}

// dumpPacket formats a packet so that it can be built again.
func dumpPacket(p *dataplane.Packet, before []byte) string {
	return fmt.Sprintf("link %v wire %d time %d mark %d: %x", p.Link, p.WireLen, p.Time, p.Mark,
		before[:min(len(before), 400)])
}

// sameVerdict runs a program and the pipeline on one packet and compares the verdicts.
func sameVerdict(t *testing.T, h *hooked, pl *pipeline.Pipeline, p dataplane.Packet) bool {
	t.Helper()
	var got, want dataplane.Verdict
	same := p
	same.Data = slices.Clone(p.Data)
	if err := h.run(&p, &got, skb{}); err != nil {
		t.Error(err)
		return false
	}
	pl.Process(&same, &want)
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	return got == want
}
