package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestCompiles counts how often commands compile a policy and encode it for the kernel.
// It reads the counters that the Go compiler adds for coverage.
func TestCompiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a network namespace")
	}
	if !nettest.Deep() {
		t.Skip("compiles the command again, for coverage: make deep")
	}
	t.Parallel()
	const compiler, encoder = "dataplane/compiled", "dataplane/kernel/internal/image"
	dir := t.TempDir()
	path := filepath.Join(dir, "shaper")
	build := exec.Command("go", "build", "-cover", "-covermode=count",
		"-coverpkg="+module+compiler+","+module+encoder+","+module+"cmd/shaper", "-o", path, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(`
classes:
  - {name: a, match: {proto: udp}, meter: {type: srtcm, cir: 1mbit, cbs: 9000, ebs: 9000, then: sum}}
  - {name: b, meter: sum}
meters:
  sum: {type: token-bucket, rate: 5mbit, burst: 9000, color: aware}
  unused: {type: token-bucket, rate: 5mbit, burst: 9000}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	const script = `
set -eu
counted() { export GOCOVERDIR=$PWD/$1; mkdir $1; }
ip link add v0 type veth peer name v1
ip link set v0 up
(counted run; exec ./shaper run v0 --policy policy.yaml) >out & 
while ! grep -q attached out; do kill -0 $!; sleep 0.05; done
for command in stats status; do (counted $command; ./shaper $command v0 >/dev/null); done
(counted reload; ./shaper reload v0 --policy policy.yaml)
kill -INT $!
wait $!
(counted check; ./shaper check policy.yaml >/dev/null)
capture=$OLDPWD/../../testdata/pcaps/bursts.pcap
for engine in go bpf; do (counted replay-$engine; ./shaper replay $capture --policy policy.yaml --engine $engine >/dev/null); done
(counted why; ./shaper why $capture 400 --policy policy.yaml >/dev/null)
`
	cmd := exec.Command("unshare", "--net", "sh", "-c", "cd "+dir+"; "+script)
	cmd.Env = append(os.Environ(), "GOCOVERDIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	compile, encode := lineOf(t, "../../"+compiler+"/compile.go", "func Compile("),
		lineOf(t, "../../"+encoder+"/encode.go", "func Encode(")
	for command, want := range map[string][2]int{
		"run": {1, 1}, "reload": {1, 1}, "stats": {0, 0}, "status": {0, 0}, "check": {1, 0},
		"replay-go": {1, 0}, "replay-bpf": {1, 1}, "why": {1, 0},
	} {
		text := filepath.Join(dir, command+".txt")
		if out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+filepath.Join(dir, command),
			"-o="+text).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		profile, err := os.ReadFile(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]int{ranAt(t, profile, compile), ranAt(t, profile, encode)}; got != want {
			t.Errorf("%s compiles %d times and encodes %d times: want %d and %d", command, got[0], got[1],
				want[0], want[1])
		}
	}
}

// lineOf returns the place of the first line of a file with some text, as in a profile.
func lineOf(t *testing.T, path, text string) string {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, _, found := bytes.Cut(source, []byte(text))
	if !found {
		t.Fatalf("%s has no %q", path, text)
	}
	return module + strings.TrimPrefix(path, "../../") + ":" +
		strconv.Itoa(bytes.Count(before, []byte("\n"))+1) + "."
}

// ranAt returns how often the block at a place ran.
func ranAt(t *testing.T, profile []byte, place string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(place) + `\d+,\S+ \d+ (\d+)$`).FindSubmatch(profile)
	if m == nil {
		t.Fatalf("%s is not in the profile", place)
	}
	n, _ := strconv.Atoi(string(m[1])) // digits
	return n
}
