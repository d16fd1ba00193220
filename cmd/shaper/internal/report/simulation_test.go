package report

import (
	"bytes"
	"strings"
	"testing"
)

func sampleSimulation() Simulation {
	s := Simulation{
		Name: "100 hosts on 1gbit", Rate: 1e9, RateText: "1gbit", Width: 0.1, Used: "used", Excess: "excess",
		Shares: "shares",
	}
	for i := range 300 {
		x := float64(i%50) / 50
		s.Offered, s.Passed, s.Allowed = append(s.Offered, 2e9*x), append(s.Passed, min(2e9*x, 1e9)),
			append(s.Allowed, 1e9)
		s.Least, s.Median, s.Most = append(s.Least, 0), append(s.Median, 1e7), append(s.Most, 1e7+1e7*x)
	}
	s.Marks = []Mark{{1, "crash"}, {1.1, "partition"}, {1.2, "clock"}, {15, "flush"}, {29.99, "failover"}}
	return s
}

func TestSimulation(t *testing.T) {
	s := sampleSimulation()
	draw := func(s Simulation) string {
		var b bytes.Buffer
		if err := WriteSimulation(&b, s); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	svg := draw(s)
	for _, text := range []string{
		s.Name, ">budget 1gbit<", ">Use<", ">Sum of shares<", ">Share of one host<", ">used<", ">excess<",
		">shares<", ">crash<", ">partition<", ">flush<", ">30 s<",
	} {
		if !strings.Contains(svg, text) {
			t.Errorf("the picture contains no %q", text)
		}
	}
	for _, text := range []string{">clock<", ">failover<"} { // these do not fit
		if strings.Contains(svg, text) {
			t.Errorf("the picture contains %q", text)
		}
	}
	if svg != draw(s) {
		t.Error("got different pictures of the same simulation")
	}
	if svg := draw(Simulation{Name: "short", Width: 1}); !strings.Contains(svg, "too short to draw") {
		t.Error("an empty picture contains no \"too short to draw\"")
	}
	for _, tt := range []struct {
		change func(*Simulation)
		want   string
	}{
		{func(s *Simulation) { s.Width = 0 }, "report: the width of a bin is 0 s, want more than 0"},
		{func(s *Simulation) { s.Most = s.Most[1:] }, "report: Most has 299 bins, Offered has 300"},
	} {
		s := sampleSimulation()
		tt.change(&s)
		if err := WriteSimulation(&bytes.Buffer{}, s); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}
