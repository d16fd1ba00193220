package routers

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestRender checks a draft with one of each part, line by line, and that it compiles.
func TestRender(t *testing.T) {
	t.Parallel()
	d := &Draft{Name: "EDGE", Remarks: []string{"two\nlines"}}
	d.Policy.Length.Base = dataplane.L2
	class := d.NewClass("voice: all", Line{Number: 3}, "class voice: all")
	p := &policer{line: Line{Number: 4, Words: []string{"police"}}, words: [4]string{"cir", "pir", "bc", "be"}}
	p.cir, p.pir = amount{10_000_000, "10 mbps", true}, amount{20_000_000, "20 mbps", true}
	p.bc, p.be = amount{1500, "default", true}, amount{3000, "3000", true}
	d.meter(class, p, meter.TRTCM{}.Kind(), "two rates")
	link := &dataplane.Link{Name: "l", Rate: meter.BitRate(10_000_000)}
	q := &dataplane.Queue{Name: "q", Link: link}
	q.Packets = 10
	d.Queue(q, Line{Number: 6}, "shape")
	d.Policy.Links = append(d.Policy.Links, link)
	d.setAction(class, meter.Red, treatment{line: 5}, nil, q)
	line := Line{Number: 2, Words: []string{"match", "dscp", "ef"}}
	d.Class(class, []Condition{
		ConditionOf(line, dscpMatch(46)),
		ConditionOf(line, dataplane.Match{VLAN: []dataplane.Range{{First: 7, Last: 8}}}),
	})
	r, err := d.Render("title", "")
	if err != nil {
		t.Fatal(err)
	}
	want := `# title
# two?lines
length: l2
classes:
  - name: "voice: all-1"                     # line 3: class voice: all
    match:
      dscp: ef                               # line 2: match dscp ef
    meter: "voice: all"                      # shared by the classes voice: all-1 to voice: all-2
    red: {queue: q}                          # line 5
  - name: "voice: all-2"                     # line 3: class voice: all
    match:
      vlan: 7-8                              # line 2: match dscp ef
    meter: "voice: all"                      # shared by the classes voice: all-1 to voice: all-2
    red: {queue: q}                          # line 5
meters:
  "voice: all":
    type: trtcm                              # line 4: police; two rates
    cir: 10mbit                              # line 4: cir 10 mbps
    cbs: 1500                                # line 4: bc default
    pir: 20mbit                              # line 4: pir 20 mbps
    pbs: 3000                                # line 4: be 3000
queues:
  q:                                         # line 6: shape
    link: l
    limit: 10p
links:
  l:
    rate: 10mbit
`
	if r.Text != want {
		t.Errorf("got\n%s\nwant\n%s", r.Text, want)
	}
	if _, err := (policyfile.Source{Name: "p", Text: r.Text}).Compile(); err != nil {
		t.Error(err)
	}
	for line, source := range map[int]int{1: 0, 5: 3, 7: 2, 21: 4, 1000: 6} {
		if got := r.SourceLine(line); got != source {
			t.Errorf("line %d: got source line %d, want %d", line, got, source)
		}
	}
}
