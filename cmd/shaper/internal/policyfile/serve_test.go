package policyfile

import (
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestServe reads a configuration with each key, and finds the entries of interfaces.
func TestServe(t *testing.T) {
	t.Parallel()
	s, err := LoadServe("shaper.yaml", []byte(`interfaces:
  - {match: eth0, policy: uplink.yaml, direction: both, pin: true}
  - {match: lo, rate: 1gbit}
  - {match: "eth*", rate: 50mbit, hook: tc, pacer: htb, gso-limit: off, repair: true, dry-run: true}
  - {match: "*", policy: rest.yaml, direction: ingress, hook: xdp}
control: control.sock
control-group: adm
control-read: read.sock
control-read-group: staff
metrics: 127.0.0.1:9090
metrics-customers: 7
state: state
`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"eth0": "eth0", "eth1": "eth*", "eth": "eth*", "wg0": "*", "lo": "lo", "": "*",
	} {
		if e := s.Of(name, name == "lo"); e == nil || e.Match != want {
			t.Errorf("%q: got entry %+v, want that of %s", name, e, want)
		}
	}
	if e := s.Of("lo2", true); e != nil {
		t.Errorf("a loopback interface got the entry of the pattern %s", e.Match)
	}
	e := s.Of("eth7", false)
	if e.Hook != "tc" || e.Pacer != "htb" || e.GSOLimit != "off" || !e.Repair || !e.Dry || e.Pin || e.Named() ||
		len(e.Directions) != 1 || e.Directions[0] != dataplane.Egress || e.Place != "shaper.yaml:4:5" {
		t.Errorf("entry %+v", e)
	}
	if e := s.Of("eth0", false); !e.Pin || !e.Named() || len(e.Directions) != 2 {
		t.Errorf("entry %+v", e)
	}
	want := Serve{
		Interfaces: s.Interfaces, Control: "control.sock", ControlGroup: "adm", ControlRead: "read.sock",
		ReadGroup: "staff", Metrics: "127.0.0.1:9090", MetricsCustomers: 7, State: "state",
	}
	if len(s.Interfaces) != 4 || !sameServe(s, &want) {
		t.Errorf("got %+v, want %+v", s, want)
	}
}

// TestServeTwoRates reads a rate for each direction, which is for both.
func TestServeTwoRates(t *testing.T) {
	t.Parallel()
	s, err := LoadServe("shaper.yaml", []byte(`interfaces:
  - {match: eth0, rate: {egress: 20 Mbit, ingress: 100mbit}}
  - {match: eth1, rate: {ingress: 3mbit, egress: 16kbit}, direction: both}
`))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"egress=20 Mbit,ingress=100mbit", "egress=16kbit,ingress=3mbit"} {
		if e := s.Interfaces[i]; e.Rate != want || len(e.Directions) != 2 {
			t.Errorf("entry %+v, want rate %s, both directions", e, want)
		}
	}
	for entry, want := range map[string]string{
		"rate: {egress: 20mbit}":                                      "1:31: rate needs both directions",
		"rate: {egress: 20mbit, ingress: 3}":                          "1:57: rate: ",
		"rate: {egress: 15kbit, ingress: 3mbit}":                      "1:40: rate: 15kbit is below 16kbit",
		"rate: 15kbit":                                                "1:31: rate: 15kbit is below 16kbit",
		"rate: {egress: 20mbit, down: 3mbit}":                         `1:48: unknown key "down" in rate`,
		"rate: {egress: 2mbit, ingress: 3mbit}, direction: egress":    "leave direction out, or give one rate",
		"rate: {egress: 2mbit, ingress: 3mbit}, direction: ingress":   "leave direction out, or give one rate",
		"rate: {egress: 2mbit, ingress: 3mbit}, hook: xdp":            "hook: xdp cannot queue packets",
		"rate: {egress: 20mbit, ingress: 3mbit}, policy: policy.yaml": "either policy: FILE or rate: RATE",
		`rate: "egress=1mbit,ingress=2mbit"`:                          "rate for each direction as {egress: 20mbit, ",
	} {
		_, err := LoadServe("shaper.yaml", []byte("interfaces: [{match: a, "+entry+"}]\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", entry, err, want)
		}
	}
}

func sameServe(a, b *Serve) bool {
	x, y := *a, *b
	x.Interfaces, y.Interfaces = nil, nil
	return x.Control == y.Control && x.ControlGroup == y.ControlGroup && x.ControlRead == y.ControlRead &&
		x.ReadGroup == y.ReadGroup && x.Metrics == y.Metrics && x.MetricsCustomers == y.MetricsCustomers &&
		x.State == y.State
}

// FuzzServe reads any configuration. An accepted one finds an entry for each name without wildcards.
func FuzzServe(f *testing.F) {
	f.Add("interfaces:\n  - {match: eth0, policy: uplink.yaml, direction: both}\n  - {match: 'v[a-c]*', rate: 1mbit}\n")
	f.Add("interfaces:\n  - {match: eth0, rate: {egress: 1mbit, ingress: 2mbit}}\n")
	f.Add("control: x\nmetrics-customers: 7\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := LoadServe("shaper.yaml", []byte(text))
		if err != nil {
			if !strings.Contains(err.Error(), "shaper.yaml") && !strings.Contains(err.Error(), "configuration") {
				t.Errorf("an error without a place: %v", err)
			}
			return
		}
		for i := range s.Interfaces {
			e := &s.Interfaces[i]
			if (e.Policy == "") == (e.Rate == "") || len(e.Directions) == 0 {
				t.Errorf("entry %+v", e)
			}
			if e.Named() && s.Of(e.Match, true) == nil {
				t.Errorf("no entry for %q", e.Match)
			}
		}
	})
}
