package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

func ExampleWrite() {
	var f bytes.Buffer
	err := Write(&f, Data{
		Input: "office.pcap", Policy: "office.toml",
		Packets: 3, Bytes: 3600, Duration: 2e9,
		Classes: []Class{{Name: "voice", Green: dataplane.Count{Packets: 3, Bytes: 3600}}},
	})
	fmt.Println(err, strings.Contains(f.String(), "mean 14.4 kbit/s"))
	// Output: <nil> true
}

func write(t *testing.T, d Data) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, d); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestEscapes(t *testing.T) {
	html := write(t, hostileSample())
	for _, bad := range []string{"<img", "<!--", "onerror=\""} {
		if i := strings.Index(html, bad); i >= 0 {
			t.Errorf("the page contains %q: …%s…", bad, html[max(0, i-60):min(len(html), i+60)])
		}
	}
	if got, want := strings.Count(html, "<script"), 4; got != want {
		t.Errorf("got %d scripts, want %d", got, want)
	}
	if got, want := strings.Count(html, "</script"), 4; got != want {
		t.Errorf("got %d ends of scripts, want %d", got, want)
	}
}

// TestSelfContained checks that the page refers to nothing that must be loaded.
func TestSelfContained(t *testing.T) {
	html := write(t, sample())
	html = strings.ReplaceAll(html, uplotJS, "")
	if m := regexp.MustCompile(`(?i)\b(src|href|url|@import|https?:)\s*[=(/"]`).FindString(html); m != "" {
		t.Errorf("the page contains %q", m)
	}
	if !strings.Contains(html,
		`http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; script-src &#39;sha256-`) {
		t.Error("the page has no Content-Security-Policy")
	}
}

func TestPageWithoutPackets(t *testing.T) {
	html := write(t, Data{Input: "empty.pcap", Policy: "p.toml", Version: "1"})
	for _, bad := range []string{"<script", "<figure", "<table", "NaN", "Warnings", "Starts"} {
		if strings.Contains(html, bad) {
			t.Errorf("the page without packets contains %q", bad)
		}
	}
	if !strings.Contains(html, "holds no packet") {
		t.Error("the page without packets contains no \"holds no packet\"")
	}
}

func TestChartLimit(t *testing.T) {
	for _, tt := range []struct {
		meters, drawn int
		note          string
	}{
		{maxCharts - 1, maxCharts - 1, ""},
		{maxCharts, maxCharts, ""},
		{maxCharts + 1, maxCharts, " 1 more meter is not drawn."},
		{maxCharts + 2, maxCharts, " 2 more meters are not drawn."},
	} {
		d := sample()
		m := d.Meters[0]
		d.Meters = nil
		for range tt.meters {
			d.Meters = append(d.Meters, m)
		}
		html := write(t, d)
		if got := strings.Count(html, `data-chart="meter"`); got != tt.drawn {
			t.Errorf("%d meters: got %d drawn, want %d", tt.meters, got, tt.drawn)
		}
		if strings.Contains(html, "not drawn") != (tt.note != "") || !strings.Contains(html, tt.note) {
			t.Errorf("got %d meters: want the note %q", tt.meters, tt.note)
		}
	}
}

func TestDropsOfQueue(t *testing.T) {
	for _, tt := range []struct {
		q    QueueSeries
		want string
	}{
		{QueueSeries{}, ""},
		{QueueSeries{CoDel: dataplane.Count{Packets: 1, Bytes: 60}}, "packets dropped: codel 1"},
		{QueueSeries{Full: dataplane.Count{Packets: 1234, Bytes: 5}, WRED: dataplane.Count{Packets: 2, Bytes: 3}}, "packets dropped: queue-full 1,234, wred 2"},
	} {
		if got := tt.q.Drops(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	html := write(t, sample())
	if !strings.Contains(html, "packets dropped: queue-full 1,234, codel 2") {
		t.Error("the page does not list the packets dropped by the queue")
	}
}

func TestCheckJoinsErrors(t *testing.T) {
	d := sample()
	d.BinWidth = 0
	d.Passed[2] = d.Passed[2][1:]
	d.Unmetered = d.Unmetered[1:]
	d.Meters[0].E.Lowest = nil
	d.Queues[0].Delay = append(d.Queues[0].Delay, 1)
	d.Queues[0].Waiting = nil
	var b bytes.Buffer
	err := Write(&b, d)
	if err == nil {
		t.Fatal("got nil, want an error")
	}
	for _, want := range []string{
		"BinWidth is 0 ns", "Passed[2] has 299", "Unmetered has 299", `meter "video" Te has 0`, `delay of queue "bulk" has 301`,
		`waiting of queue "bulk" has 0`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not hold %q", err, want)
		}
	}
	if b.Len() > 0 {
		t.Errorf("got %d bytes written before the error, want 0", b.Len())
	}
}

func TestWriterError(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	if err := Write(w, sample()); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v, want that of the writer", err)
	}
}

func TestNumbers(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{percent(0, 0), "–"},
		{percent(0, 9), "0 %"},
		{percent(9, 9), "100 %"},
		{percent(49, 100_000), "< 0.1 %"},
		{percent(50, 100_000), "0.1 %"},
		{percent(1, 3), "33.3 %"},
		{percent(99_949, 100_000), "99.9 %"},
		{percent(99_950, 100_000), "> 99.9 %"},
		{duration(0), "0 s"},
		{duration(999_999_999), "999.999999 ms"},
		{duration(1_000_499_999), "1 s"},
		{duration(61_500_000_000), "1 min 1.5 s"},
		{duration(7_200_000_000_000), "2 h 0 min 0 s"},
		{duration(59_999_600_000), "1 min 0 s"},
		{duration(1), "1 ns"},
		{brief(0), "0 s"},
		{brief(999), "999 ns"},
		{brief(1_994_999), "1.99 ms"},
		{brief(1_995_000), "2 ms"},
		{brief(663_333_333), "663 ms"},
		{meanRate(1, 0), ""},
		{meanRate(0, 1), "mean 0.00 bit/s"},
		{meanRate(1500, 1e9), "mean 12.0 kbit/s"},
		{meanRate(125_000_000, 1e9), "mean 1.00 Gbit/s"},
		{meanRate(124_999, 1e9), "mean 1.00 Mbit/s"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

// TestUplotUnchanged checks that the files of uplot/ are the published ones.
func TestUplotUnchanged(t *testing.T) {
	readme, err := os.ReadFile("uplot/README.md")
	if err != nil {
		t.Fatal(err)
	}
	sums := regexp.MustCompile(`(?m)^ +([0-9a-f]{64})  (\S+)$`).FindAllStringSubmatch(string(readme), -1)
	entries, err := os.ReadDir("uplot")
	if err != nil {
		t.Fatal(err)
	}
	if len(sums) != len(entries)-1 {
		t.Errorf("uplot/README.md has %d sums, want one for each of the %d other files", len(sums),
			len(entries)-1)
	}
	for _, m := range sums {
		data, err := os.ReadFile(filepath.Join("uplot", m[2]))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != m[1] {
			t.Errorf("uplot/%s was edited: got sha256 %x, want %s as in uplot/README.md", m[2], sum, m[1])
		}
	}
}
