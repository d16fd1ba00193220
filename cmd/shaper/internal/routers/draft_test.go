package routers

import (
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// TestRender checks a draft with one of each part, line by line, and that it compiles.
func TestRender(t *testing.T) {
	t.Parallel()
	d := &Draft{Name: "EDGE", Length: "l2", Remarks: []string{"two\nlines"}}
	class := NewEntry("voice: all", 3, "class voice: all")
	m := class.Map("meter")
	m.Set("type", "trtcm", 4, "police")
	m.Set("cir", BitRate(10_000_000), 4, "10 mbps")
	m.Set("cbs", "1500", 0, "default")
	m.Set("pir", BitRate(20_000_000), 0, "")
	m.Set("pbs", "3000", 0, "")
	class.Set("red", "{queue: q}", 5, "")
	line := Line{Number: 2, Words: []string{"match", "dscp", "ef"}}
	a, b := Keyed(line, "dscp", "ef"), Keyed(line, "vlan", "7", "8")
	d.Class(class, append(a, b...))
	q := NewEntry("q", 6, "shape")
	q.Set("link", "l", 0, "")
	q.Set("limit", "10p", 0, "")
	d.Queues = append(d.Queues, q)
	link := NewEntry("l", 0, "")
	link.Set("rate", "10mbit", 0, "")
	d.Links = append(d.Links, link)
	r := d.Render("title")
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
      vlan: [7, 8]                           # line 2: match dscp ef
    meter: "voice: all"                      # shared by the classes voice: all-1 to voice: all-2
    red: {queue: q}                          # line 5
meters:
  "voice: all":
    type: trtcm                              # line 4: police
    cir: 10mbit                              # line 4: 10 mbps
    cbs: 1500                                # default
    pir: 20mbit
    pbs: 3000
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

// TestQuote checks that names are read as they were, whatever characters they have.
func TestQuote(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"a", "VOICE-1", "GE0/0/1", "yes", "Null", "1", "1.5", "0x10", "a b", "a: b", "a #b", "[a]", "{", "-",
		"~", "'", `"`, `\`, "é", "a,b", "%", "@", "a\u2028b", "12e3", ".5", "_1",
	} {
		e := NewEntry(name, 0, "")
		if got := e.Name(); got != name {
			t.Errorf("%q: Name returns %q", name, got)
		}
		var got struct{ A []any }
		if err := yaml.Unmarshal([]byte("a: ["+e.Key+"]"), &got); err != nil || len(got.A) != 1 ||
			got.A[0] != name {
			t.Errorf("%q is read as %v, %v", name, got.A, err)
		}
	}
}
