package main

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/summary"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestNoEpisodes checks that a replay without episodes allocates nothing for each packet, and prints
// none.
func TestNoEpisodes(t *testing.T) {
	dir := t.TempDir()
	one, err := os.ReadFile("../../testdata/pcaps/bursts.pcap")
	if err != nil {
		t.Fatal(err)
	}
	const header = 24 // of a pcap file
	var used [2]uint64
	for i, repeats := range []int{1, 50} {
		path := filepath.Join(dir, strconv.Itoa(i))
		if err := os.WriteFile(path, append(one[:header:header], bytes.Repeat(one[header:], repeats)...),
			0o600); err != nil {
			t.Fatal(err)
		}
		used[i] = math.MaxUint64
		for range 5 { // the least, because other goroutines allocate as well
			var out bytes.Buffer
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			code := run([]string{
				"replay", path, "--meter", "token-bucket rate=1mbit burst=3000", "--no-episodes", "--json",
			}, cli.Streams{Out: &out, Err: io.Discard})
			runtime.ReadMemStats(&after)
			used[i] = min(used[i], after.Mallocs-before.Mallocs)
			if code != cli.ExitDone || strings.Contains(out.String(), "episode") ||
				!strings.Contains(out.String(), `"dropped"`) {
				t.Fatalf("exit %d: %s", code, &out)
			}
		}
	}
	if used[1] > used[0]+used[0]/10 {
		t.Errorf("%d allocations for a capture, %d for one 50 times as long", used[0], used[1])
	}
}

// episodeRow is a packet of an episode, from the rows of --decisions.
type episodeRow struct {
	kind, class, reason string
	packet, at, length  int64
}

// TestEpisodesAreTheRows compares the episodes and drop reasons of replay --json with the rows of
// --decisions, which other tests compare with the reference model.
func TestEpisodesAreTheRows(t *testing.T) {
	dir := t.TempDir()
	captures := []string{
		"../../testdata/pcaps/voice-bulk.pcapng", "../../testdata/pcaps/bursts.pcap",
		randomCapture(t, rand.New(rand.NewPCG(7, 0))),
	}
	fair := "fair.yaml"
	for name, text := range map[string]string{
		fair: `
queues:
  q: {link: up, limit: 100p, fair: flow, codel: {target: 1ms, interval: 5ms}}
links: {up: {rate: 2mbit}}
otherwise: drop
classes:
  - {name: tcp, match: {proto: tcp}, meter: {type: srtcm, cir: 1mbit, cbs: 3000, ebs: 6000}, green: {queue: q}, yellow: {queue: q}}
  - {name: udp, match: {proto: udp}, meter: {type: trtcm, cir: 1mbit, cbs: 3000, pir: 2mbit, pbs: 6000}, green: {ecn: ce, else: drop}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]int{}
	for _, capture := range captures {
		for _, policy := range []string{
			"../../docs/customer.yaml", "../../docs/link.yaml", filepath.Join(dir, fair),
		} {
			rows := filepath.Join(dir, "rows.csv")
			var out, stderr bytes.Buffer
			if code := run([]string{"replay", capture, "-p", policy, "--json", "--decisions", rows},
				cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
				t.Fatalf("exit %d: %s", code, &stderr)
			}
			var got summary.Totals
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			list, reasons := readEpisodeRows(t, rows)
			for _, class := range got.Classes {
				if want := reasons[class.Name]; len(class.Reasons)+len(want) > 0 &&
					!reflect.DeepEqual(class.Reasons, want) {
					t.Errorf("%s, %s, class %s: got reasons %v, the rows %v", capture, policy, class.Name,
						class.Reasons, want)
				}
				for reason := range class.Reasons {
					seen[reason]++
				}
			}
			compareEpisodes(t, capture+", "+policy, &got, list)
		}
	}
	for _, reason := range []string{"color", "ecn", "queue-full", "wred", "codel", "unclassified"} {
		if seen[reason] == 0 {
			t.Errorf("no packet was dropped for the reason %s", reason)
		}
	}
}

// readEpisodeRows returns the rows that belong to episodes, and the dropped packets by class and
// reason. Clauses of meters are the reason color, or ecn if the color is green.
func readEpisodeRows(
	t *testing.T, path string,
) (list []episodeRow, reasons map[string]map[string]dataplane.Count) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := func(row []string, name string) string { return row[slices.Index(rows[0], name)] }
	number := func(row []string, name string) int64 {
		n, _ := strconv.ParseInt(column(row, name), 10, 64)
		return n
	}
	reasons = map[string]map[string]dataplane.Count{}
	clock := int64(0)
	for _, row := range rows[1:] {
		clock = max(clock, number(row, "time_ns"))
		r := episodeRow{
			"drop", strings.TrimPrefix(column(row, "class"), "'"), column(row, "reason"),
			number(row, "packet"), clock, number(row, "length"),
		}
		switch color := column(row, "color"); {
		case column(row, "action") != "drop" && color != "yellow":
			continue
		case column(row, "action") != "drop":
			r.kind = "yellow"
		case r.class == "-":
			r.reason = "unclassified"
		case color == "green" && strings.HasSuffix(r.reason, "-green"):
			r.reason = "ecn"
		case strings.HasSuffix(r.reason, "-"+color):
			r.reason = "color"
		}
		list = append(list, r)
		if r.kind == "drop" {
			if reasons[r.class] == nil {
				reasons[r.class] = map[string]dataplane.Count{}
			}
			reasons[r.class][r.reason] = reasons[r.class][r.reason].Plus(
				dataplane.Count{Packets: 1, Bytes: r.length})
		}
	}
	return list, reasons
}

// compareEpisodes compares drop episodes with the rows. Rows do not tell whether a link dropped a
// yellow packet on arrival or later; TestAgainstModel of package episodes has yellow ones.
func compareEpisodes(t *testing.T, what string, got *summary.Totals, rows []episodeRow) {
	t.Helper()
	slices.SortStableFunc(rows, func(a, b episodeRow) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.class, b.class))
	})
	var want []summary.EpisodeTotals
	for i, r := range rows {
		if i == 0 || rows[i-1].kind != r.kind || rows[i-1].class != r.class || r.at-rows[i-1].at >= 100e6 {
			want = append(want, summary.EpisodeTotals{
				Kind: r.kind, Class: r.class, StartNS: r.at, FirstPacket: r.packet,
				Reasons: map[string]dataplane.Count{},
			})
		}
		e := &want[len(want)-1]
		n := dataplane.Count{Packets: 1, Bytes: r.length}
		e.DurationNS, e.LastPacket, e.Count = r.at-e.StartNS, r.packet, e.Plus(n)
		if r.kind == "drop" {
			e.Reasons[r.reason] = e.Reasons[r.reason].Plus(n)
		}
	}
	want = slices.DeleteFunc(want, func(e summary.EpisodeTotals) bool { return e.Kind == "yellow" })
	slices.SortStableFunc(want, func(a, b summary.EpisodeTotals) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.StartNS, b.StartNS))
	})
	if got.DropEpisodes != int64(len(want)) {
		t.Errorf("%s: got %d drop episodes, the rows have %d", what, got.DropEpisodes, len(want))
	}
	if len(got.Episodes) < min(5, len(want)) {
		t.Fatalf("%s: got %d episodes of %d", what, len(got.Episodes), len(want))
	}
	for i := range min(5, len(want)) {
		g, w := &got.Episodes[i], &want[i]
		if g.Kind != w.Kind || g.Class != w.Class || g.DurationNS != w.DurationNS ||
			g.FirstPacket != w.FirstPacket || g.LastPacket != w.LastPacket ||
			g.Count != w.Count || !reflect.DeepEqual(g.Reasons, w.Reasons) {
			t.Errorf("%s, episode %d:\ngot  %+v\nwant %+v", what, i+1, g, w)
		}
		if g.Flow.Bytes < 1 || g.Flow.Bytes > g.Bytes ||
			!strings.Contains(g.Why, " "+strconv.FormatInt(g.FirstPacket, 10)+" ") {
			t.Errorf("%s, episode %d: flow %+v, %s", what, i+1, g.Flow, g.Why)
		}
	}
}

// TestEpisodeLack compares the lack of an episode with the tokens that shaper why prints for each
// of its packets, and runs its command.
func TestEpisodeLack(t *testing.T) {
	const capture = "../../testdata/pcaps/bursts.pcap"
	policy := []string{"--meter", "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB"}
	var out, stderr bytes.Buffer
	if code := run(append([]string{"replay", capture, "--json"}, policy...),
		cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	var got summary.Totals
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	checked := map[string]bool{}
	for _, e := range got.Episodes {
		bucket := map[string]int{"yellow": 0, "drop": 1}[e.Kind] // Tc, Tp
		color := map[string]string{"yellow": "yellow", "drop": "red"}[e.Kind]
		if checked[e.Kind] {
			continue
		}
		checked[e.Kind] = true
		want := int64(0)
		for n := e.FirstPacket; n <= e.LastPacket; n++ {
			x := whyJSON(t, capture, int(n), policy...)
			if m := x.Meters[0]; m.Color == color {
				want = max(want, int64(m.Length)-m.Buckets[bucket].Before)
			}
		}
		if e.Lack == nil || *e.Lack != want || e.LackUnit != "bytes" || e.Meter != "all" {
			t.Errorf("%s: got %+v, want a lack of %d bytes", e.Kind, e, want)
		}
	}
	if len(checked) != 2 {
		t.Errorf("checked episodes: %v, want one of each kind", checked)
	}
}

// TestReportTiles compares the packets in the tiles of a report with the rows of --decisions. Each of
// the worst episodes begins in a tile, also if a link drops its packets later, or packets are left out.
func TestReportTiles(t *testing.T) {
	for _, policy := range []string{
		"../../docs/customer.yaml", "../../docs/link.yaml", "../../docs/link.yaml --filter tcp",
		"../../docs/customer.yaml --filter udp",
	} {
		more := strings.Fields(policy)
		dir := t.TempDir()
		path, rows := filepath.Join(dir, "report.html"), filepath.Join(dir, "rows.csv")
		var out, stderr bytes.Buffer
		args := []string{
			"replay", "../../testdata/pcaps/voice-bulk.pcapng", "--report", path, "--decisions", rows,
			"--json", "-p",
		}
		args = append(args, more...)
		if code := run(args, cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
			t.Fatalf("exit %d: %s", code, &stderr)
		}
		var got summary.Totals
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		html, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut(string(html), `id="series">`)
		var series struct {
			Classes []struct {
				Name  string
				Index int
			}
			Episodes []struct{ From, To float64 }
			Tiles    []struct {
				From                        int64
				Number, After, Length, Left []int64
				Class, Color                []int
			}
		}
		if err := json.NewDecoder(strings.NewReader(text)).Decode(&series); err != nil {
			t.Fatal(err)
		}
		file, err := os.ReadFile(rows)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := csv.NewReader(bytes.NewReader(file)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		row := map[string][]string{}
		for _, line := range lines {
			row[line[0]] = line
		}
		start, _ := strconv.ParseInt(lines[1][1], 10, 64)
		begun, checked := 0, 0
		for _, tile := range series.Tiles {
			at := start + tile.From
			for i := range tile.After {
				at += tile.After[i]
				number := strconv.FormatInt(tile.Number[i], 10)
				row := row[number]
				left := ""
				if tile.Left[i] >= 0 {
					left = strconv.FormatInt(at+tile.Left[i], 10)
				}
				class := "-"
				for _, c := range series.Classes {
					if c.Index == tile.Class[i] {
						class = c.Name
					}
				}
				color := []string{"green", "yellow", "red", ""}[tile.Color[i]]
				want := []string{
					number, strconv.FormatInt(at, 10), strconv.FormatInt(tile.Length[i], 10), class,
				}
				if row == nil || !slices.Equal(row[:4], want) || row[5] != color || row[9] != left {
					t.Fatalf("%s: packet %v, %s, departure %s is the row %v", policy, want, color, left, row)
				}
				checked++
			}
			for i, e := range got.Episodes {
				if slices.Contains(tile.Number, e.FirstPacket) {
					begun++
				}
				if math.Abs(series.Episodes[i].From*1e9-float64(e.StartNS)) > 1 {
					t.Errorf("%s: episode %d begins at %v s, want %d ns", policy, i, series.Episodes[i].From,
						e.StartNS)
				}
			}
		}
		if begun != len(got.Episodes) || begun != 5 || checked < 500 {
			t.Errorf("%s: %d of %d episodes begin in a tile; %d packets", policy, begun, len(got.Episodes),
				checked)
		}
	}
}
