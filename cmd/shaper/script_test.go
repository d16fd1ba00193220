package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/pcapgo"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

func TestMain(m *testing.M) {
	nettest.Isolate()
	testscript.Main(m, map[string]func(){"shaper": main})
}

// TestScript runs testdata/script. Besides testscript's own commands there are:
//
//	exits CODE ARG...   runs shaper with the arguments and wants the exit code
//	packets N FILE      wants N packets in a capture, read by gopacket
//	lone FILE...        wants nothing but these files in the current directory
func TestScript(t *testing.T) {
	pcaps, err := filepath.Abs("../../testdata/pcaps")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:             "testdata/script",
		ContinueOnError: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector waits a second at each exit
			e.Setenv("PCAPS", pcaps)
			e.Setenv("METER", "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   wantExitCode,
			"packets": wantPackets,
			"lone":    wantOnlyFiles,
		},
	})
}

// wantExitCode also checks that each line on stderr begins with shaper:, and that a command with an
// exit code other than 0 prints an error.
func wantExitCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec("shaper", args[1:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
	failed := false
	for line := range strings.Lines(ts.ReadFile("stderr")) {
		warning := strings.HasPrefix(line, "shaper: warning: ")
		if !strings.HasPrefix(line, "shaper: ") && want != 0 {
			ts.Fatalf("a line on stderr is not shaper's: %q", line)
		}
		failed = failed || !warning
	}
	if want != 0 && !failed {
		ts.Fatalf("exit code %d without an error", got)
	}
}

func wantPackets(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got, err := countPackets([]byte(ts.ReadFile(args[1])))
	if err != nil || got != want {
		ts.Fatalf("%s: %d packets, want %d: %v", args[1], got, want, err)
	}
}

// countPackets reads a capture, gzipped or not, with gopacket.
func countPackets(raw []byte) (n int, err error) {
	var in io.Reader = bytes.NewReader(raw)
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		if in, err = gzip.NewReader(in); err != nil {
			return 0, err
		}
		if raw, err = io.ReadAll(in); err != nil {
			return 0, err
		}
		in = bytes.NewReader(raw)
	}
	var source gopacket.PacketDataSource
	if bytes.HasPrefix(raw, []byte{0x0a, 0x0d, 0x0d, 0x0a}) {
		source, err = pcapgo.NewNgReader(in, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	} else {
		source, err = pcapgo.NewReader(in)
	}
	for ; err == nil; n++ {
		if _, _, err = source.ReadPacketData(); err != nil {
			break
		}
	}
	if errors.Is(err, io.EOF) && source != nil {
		err = nil
	}
	return n, err
}

func wantOnlyFiles(ts *testscript.TestScript, _ bool, args []string) {
	entries, err := os.ReadDir(ts.MkAbs("."))
	ts.Check(err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(args, " ") {
		ts.Fatalf("files are %q, want %q", got, args)
	}
}

// loadedElsewhere matches parts of a page that a browser would load from elsewhere.
var loadedElsewhere = regexp.MustCompile(`(?i)(src|href|action|data)\s*=\s*["']?\s*(https?:)?//|@import|url\(\s*["']?(https?:)?//|fetch\(|XMLHttpRequest|WebSocket\(`)

// TestReportLoadsNothing checks that a report is self-contained.
func TestReportLoadsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.html")
	var out, stderr bytes.Buffer
	code := run([]string{
		"replay", "../../testdata/pcaps/bursts.pcap", "--report", path,
		"--meter", "srtcm cir=10mbit cbs=64KiB ebs=64KiB", "--yellow", "queue", "--queue", "rate=5mbit limit=1s",
	}, cli.Streams{Out: &out, Err: &stderr})
	page, err := os.ReadFile(path)
	if code != cli.ExitDone || err != nil {
		t.Fatalf("exit %d: %v: %s", code, err, &stderr)
	}
	if !bytes.Contains(page, []byte("<html")) || !bytes.Contains(page, []byte("bursts.pcap")) {
		t.Error("not a page about the capture")
	}
	if found := loadedElsewhere.FindAll(page, -1); found != nil {
		t.Errorf("the page loads %q", found)
	}
}
