package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/a-seed-32e5a53f/shaper/"

// rooms has the packages of this module that each room may import, besides those in its own folders, and
// the packages that only its tests may import. All other imports are errors. The row cmd/shaper is the
// command alone: each room below it has a row of its own.
var rooms = []struct {
	room       string
	may, tests []string
}{
	{"cmd/shaper/internal/oracle", nil, nil}, // the model shares no code
	{"cmd/shaper/internal/calendar", nil, nil},
	{"cmd/shaper/internal/output", nil, nil},
	{"cmd/shaper/internal/quota", nil, nil},
	{"cmd/shaper/internal/chrome", nil, nil},
	{"cmd/shaper/internal/report", []string{"cmd/shaper/internal/say", "dataplane", "dataplane/compiled"}, []string{"cmd/shaper/internal/chrome"}},
	{"cmd/shaper/internal/say", []string{"cmd/shaper/internal/policyfile", "dataplane", "marker", "meter", "meter/shared", "queue"}, nil},
	{"cmd/shaper/internal/strictjson", nil, nil},
	{"cmd/shaper/internal/changes", []string{"cmd/shaper/internal/strictjson", "dataplane/kernel/safedir"}, nil},
	{"cmd/shaper/internal/pattern", nil, nil},
	{"cmd/shaper/internal/policyfile", []string{"cmd/shaper/internal/calendar", "cmd/shaper/internal/changes", "cmd/shaper/internal/pattern", "dataplane", "dataplane/compiled", "marker", "meter", "queue"}, nil},
	{
		"cmd/shaper/internal/check",
		[]string{
			"cmd/shaper/internal/calendar", "cmd/shaper/internal/cli", "cmd/shaper/internal/lint", "cmd/shaper/internal/policyfile",
			"cmd/shaper/internal/say", "dataplane", "meter", "meter/shared", "queue",
		},
		nil,
	},
	{
		"cmd/shaper/internal/cli",
		[]string{
			"cmd/shaper/internal/lint", "cmd/shaper/internal/output", "cmd/shaper/internal/policyfile",
			"cmd/shaper/internal/say", "dataplane", "dataplane/kernel",
		},
		nil,
	},
	{
		"cmd/shaper/internal/live",
		[]string{
			"cmd/shaper/internal/budgets", "cmd/shaper/internal/calendar", "cmd/shaper/internal/changes", "cmd/shaper/internal/cli",
			"cmd/shaper/internal/connections", "cmd/shaper/internal/policyfile", "cmd/shaper/internal/quota", "cmd/shaper/internal/say",
			"cmd/shaper/internal/strictjson",
			"dataplane", "dataplane/kernel", "dataplane/tap", "meter", "meter/shared",
		},
		[]string{"meter/shared/lease"},
	},
	{
		"cmd/shaper/internal/stats",
		[]string{
			"cmd/shaper/internal/budgets", "cmd/shaper/internal/changes", "cmd/shaper/internal/cli", "cmd/shaper/internal/control",
			"cmd/shaper/internal/live", "cmd/shaper/internal/policyfile", "cmd/shaper/internal/say", "dataplane", "dataplane/kernel",
			"dataplane/tap", "meter",
		},
		nil,
	},
	{
		"cmd/shaper/internal/process",
		[]string{
			"cmd/shaper/internal/budgets", "cmd/shaper/internal/changes", "cmd/shaper/internal/cli",
			"cmd/shaper/internal/control", "cmd/shaper/internal/live", "cmd/shaper/internal/metrics",
			"cmd/shaper/internal/output", "cmd/shaper/internal/policyfile", "cmd/shaper/internal/say",
			"dataplane", "dataplane/kernel", "dataplane/tap", "internal/safedir",
		},
		[]string{"dataplane/nettest"},
	},
	{
		"cmd/shaper/internal/detach",
		[]string{
			"cmd/shaper/internal/cli",
			"cmd/shaper/internal/live",
			"cmd/shaper/internal/say",
			"dataplane",
			"dataplane/kernel",
			"dataplane/kernel/standby",
		},
		nil,
	},
	{
		"cmd/shaper/internal/reload",
		[]string{
			"cmd/shaper/internal/budgets",
			"cmd/shaper/internal/changes",
			"cmd/shaper/internal/cli",
			"cmd/shaper/internal/control",
			"cmd/shaper/internal/live",
			"cmd/shaper/internal/output",
			"cmd/shaper/internal/policyfile",
			"cmd/shaper/internal/process",
			"cmd/shaper/internal/say",
			"cmd/shaper/internal/stats",
			"dataplane",
			"dataplane/compiled",
			"dataplane/kernel",
		},
		nil,
	},
	{
		"cmd/shaper/internal/summary",
		[]string{
			"cmd/shaper/internal/bins", "cmd/shaper/internal/episodes", "cmd/shaper/internal/policyfile", "cmd/shaper/internal/report",
			"cmd/shaper/internal/say", "dataplane", "dataplane/replay", "meter",
		},
		nil,
	},
	{
		"cmd/shaper/internal/bench",
		[]string{
			"cmd/shaper", "dataplane", "dataplane/kernel", "dataplane/kernel/walk", "dataplane/nettest",
			"dataplane/replay", "meter", "meter/shared", "meter/shared/lease", "queue",
		},
		nil,
	},
	{
		"cmd/shaper/internal/advise",
		[]string{
			"cmd/shaper/internal/report", "cmd/shaper/internal/say", "cmd/shaper/internal/tcpmodel",
			"dataplane", "meter", "queue",
		},
		nil,
	},
	{"cmd/shaper/internal/annotate", []string{"cmd/shaper/internal/say", "dataplane", "meter"}, nil},
	{"cmd/shaper/internal/bins", nil, nil},
	{
		"cmd/shaper/internal/budgets",
		[]string{
			"cmd/shaper/internal/policyfile", "cmd/shaper/internal/say", "dataplane", "meter",
			"meter/shared", "meter/shared/lease",
		},
		[]string{
			"dataplane/kernel", "meter/shared/storetest",
		},
	},
	{
		"cmd/shaper/internal/compare",
		[]string{
			"cmd/shaper/internal/bins", "cmd/shaper/internal/policyfile", "cmd/shaper/internal/report",
			"cmd/shaper/internal/say", "dataplane", "dataplane/replay", "meter",
		},
		nil,
	},
	{"cmd/shaper/internal/connections", nil, nil},
	{
		"cmd/shaper/internal/control",
		[]string{
			"cmd/shaper/internal/changes", "cmd/shaper/internal/connections", "cmd/shaper/internal/live",
			"cmd/shaper/internal/policyfile", "cmd/shaper/internal/strictjson", "dataplane",
			"internal/safedir",
		},
		nil,
	},
	{"cmd/shaper/internal/decisions", []string{"dataplane"}, nil},
	{
		"cmd/shaper/internal/diff",
		[]string{
			"cmd/shaper/internal/calendar", "cmd/shaper/internal/policyfile", "cmd/shaper/internal/say",
			"dataplane", "dataplane/replay", "meter", "queue",
		},
		nil,
	},
	{"cmd/shaper/internal/episodes", []string{"dataplane", "meter"}, []string{"queue"}},
	{
		"cmd/shaper/internal/explain",
		[]string{
			"cmd/shaper/internal/decisions", "cmd/shaper/internal/layer",
			"cmd/shaper/internal/policyfile", "cmd/shaper/internal/say", "dataplane", "marker", "meter",
			"queue",
		},
		nil,
	},
	{"cmd/shaper/internal/gate", nil, nil},
	{"cmd/shaper/internal/gotest", nil, nil},
	{"cmd/shaper/internal/layer", []string{"dataplane"}, nil},
	{
		"cmd/shaper/internal/lint",
		[]string{
			"cmd/shaper/internal/policyfile", "cmd/shaper/internal/say", "dataplane", "meter", "queue",
		},
		nil,
	},
	{
		"cmd/shaper/internal/livetest",
		nil,
		[]string{
			"bpf", "cmd/shaper/internal/changes", "cmd/shaper/internal/tcpmodel", "dataplane",
			"dataplane/kernel", "dataplane/nettest", "dataplane/replay", "meter",
			"meter/shared/storetest", "queue",
		},
	},
	{
		"cmd/shaper/internal/metrics",
		[]string{
			"cmd/shaper/internal/connections", "cmd/shaper/internal/live",
			"cmd/shaper/internal/policyfile", "cmd/shaper/internal/say", "dataplane", "dataplane/kernel",
			"meter", "meter/shared",
		},
		[]string{
			"meter/shared/lease",
		},
	},
	{
		"cmd/shaper/internal/routers",
		[]string{
			"cmd/shaper/internal/routers", "cmd/shaper/internal/pattern", "cmd/shaper/internal/policyfile", "dataplane", "marker",
			"meter", "queue",
		},
		[]string{
			"dataplane/nettest",
		},
	},
	{"cmd/shaper/internal/screenshot", nil, nil},
	{
		"cmd/shaper/internal/simulate",
		[]string{
			"cmd/shaper/internal/policyfile", "meter", "meter/shared/lease", "meter/shared/lease/world",
		},
		nil,
	},
	{"cmd/shaper/internal/tcpmodel", []string{"meter", "queue"}, nil},
	{"cmd/shaper/internal/thirdparty", nil, nil},
	{
		"cmd/shaper",
		[]string{
			"cmd/shaper", "dataplane", "dataplane/kernel", "dataplane/kernel/hostbudget",
			"dataplane/kernel/remedy", "dataplane/kernel/safedir", "dataplane/kernel/standby",
			"dataplane/kernel/walk", "dataplane/kernel/watch", "dataplane/replay", "dataplane/replay/filter",
			"dataplane/tap", "marker", "meter", "meter/shared", "meter/shared/lease",
			"meter/shared/lease/world", "queue",
		},
		[]string{"bpf", "dataplane/nettest", "meter/shared/storetest"},
	},
	{"dataplane/nettest", nil, nil},
	{"dataplane/replay", []string{"dataplane", "dataplane/compiled", "dataplane/pipeline"}, []string{"meter", "queue"}},
	{"dataplane/kernel/internal/qdisc", []string{"dataplane/kernel/internal/cause", "queue"}, []string{"dataplane/nettest"}},
	{"dataplane/kernel/internal/hook", []string{"dataplane/kernel/internal/cause", "dataplane/kernel/internal/qdisc"}, nil},
	{"dataplane/kernel/internal/cause", nil, nil},
	{"dataplane/kernel/safedir", nil, nil},
	{"dataplane/kernel/remedy", nil, nil},
	{"dataplane/kernel/internal/iface", []string{"dataplane", "dataplane/kernel/internal/cause"}, nil},
	{"dataplane/kernel/internal/engine", []string{"bpf", "dataplane", "dataplane/kernel/internal/cause", "dataplane/kernel/remedy", "meter"}, nil},
	{
		"dataplane/kernel/internal/record",
		[]string{
			"bpf", "dataplane", "dataplane/kernel/internal/cause", "dataplane/kernel/internal/hook", "dataplane/kernel/internal/iface",
			"dataplane/kernel/internal/qdisc", "meter",
		},
		nil,
	},
	{
		"dataplane/kernel/internal/rundir",
		[]string{
			"dataplane", "dataplane/kernel/internal/cause", "dataplane/kernel/internal/hook", "dataplane/kernel/internal/iface",
			"dataplane/kernel/internal/qdisc", "dataplane/kernel/remedy", "dataplane/kernel/safedir",
		},
		[]string{"dataplane/kernel/internal/kerneltest", "dataplane/nettest"},
	},
	{
		"dataplane/kernel/internal/registry",
		[]string{
			"bpf", "dataplane", "dataplane/kernel/internal/cause", "dataplane/kernel/internal/engine", "dataplane/kernel/internal/hook",
			"dataplane/kernel/internal/iface", "dataplane/kernel/internal/record", "dataplane/kernel/internal/rundir", "meter",
		},
		nil,
	},
	{
		"dataplane/kernel/internal/image",
		[]string{
			"bpf", "dataplane", "dataplane/kernel/internal/cause", "dataplane/kernel/internal/engine", "dataplane/kernel/internal/hook",
			"dataplane/kernel/internal/iface", "dataplane/kernel/internal/qdisc", "dataplane/kernel/internal/record", "dataplane/kernel/internal/registry",
			"dataplane/kernel/remedy", "meter", "queue",
		},
		[]string{"dataplane/kernel/internal/kerneltest", "dataplane/nettest"},
	},
	{"dataplane/kernel/internal/kerneltest", []string{"dataplane", "dataplane/nettest", "meter"}, nil},
	{
		"dataplane/kernel/standby",
		[]string{
			"dataplane", "dataplane/kernel/internal/iface", "dataplane/kernel/internal/rundir",
			"dataplane/kernel/safedir",
		},
		nil,
	},
	{
		"dataplane/kernel/hostbudget",
		[]string{
			"bpf", "dataplane", "dataplane/kernel/internal/engine", "dataplane/kernel/internal/iface", "dataplane/kernel/internal/registry",
			"dataplane/kernel/internal/rundir", "meter",
		},
		[]string{"dataplane/kernel/internal/kerneltest", "dataplane/nettest"},
	},
	{
		"dataplane/kernel/walk",
		[]string{
			"bpf", "dataplane", "dataplane/kernel/internal/cause", "dataplane/kernel/internal/engine", "dataplane/kernel/internal/image",
			"dataplane/kernel/internal/record", "dataplane/kernel/remedy", "meter",
		},
		[]string{
			"dataplane/kernel/hostbudget", "dataplane/kernel/internal/iface", "dataplane/kernel/internal/kerneltest",
			"dataplane/kernel/internal/qdisc", "dataplane/kernel/internal/registry", "dataplane/kernel/internal/rundir",
			"dataplane/nettest", "dataplane/replay", "meter/metertest", "queue",
		},
	},
	{
		"dataplane/kernel/watch",
		[]string{"dataplane/kernel"},
		[]string{
			"dataplane/kernel/internal/hook", "dataplane/kernel/internal/kerneltest",
			"dataplane/kernel/internal/record", "dataplane/nettest",
		},
	},
	{"dataplane/kernel", []string{"bpf", "dataplane", "meter", "queue"}, []string{"dataplane/replay", "dataplane/nettest", "meter/metertest"}},
	{"dataplane/tap", []string{"dataplane", "dataplane/compiled", "dataplane/pipeline", "meter"}, []string{"dataplane/nettest", "queue"}},
	{"dataplane/pipeline", []string{"dataplane", "dataplane/compiled", "meter", "queue"}, []string{"dataplane/internal/frametest"}},
	{"dataplane/compiled", []string{"dataplane", "meter", "queue"}, []string{"dataplane/internal/frametest"}},
	{"dataplane/internal/frametest", []string{"dataplane", "meter", "queue"}, nil},
	{"dataplane", []string{"marker", "meter", "queue"}, []string{"dataplane/compiled"}},
	{"queue", []string{"meter"}, nil},
	{"marker", []string{"meter"}, nil},
	{"meter/shared", []string{"meter"}, []string{"dataplane/nettest"}},
	{"meter", nil, []string{"meter/metertest"}},
	{"meter/metertest", nil, nil}, // the model shares no code
	{"bpf", nil, nil},
}

// TestRooms checks the direction of imports, also of tests, that meter imports only the
// standard library, and that only meter/shared imports Redis.
func TestRooms(t *testing.T) {
	list := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	list.Dir = "../.." // with the module's path instead, go list needs modules that no build downloads
	out, err := list.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		t.Fatalf("go list: %v: %s", err, failed.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath                         string
			Imports, TestImports, XTestImports []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		path := strings.TrimPrefix(p.ImportPath, module)
		room, may, tests := roomOf(t, path)
		for _, i := range p.Imports {
			if local, ours := strings.CutPrefix(i, module); ours {
				if !allowed(local, room, may) {
					t.Errorf("%s imports %s", path, local)
				}
			} else if room == "meter" && strings.Contains(i, ".") {
				t.Errorf("%s imports %s: meter is for embedding and has the standard library alone", path, i)
			} else if strings.HasPrefix(i, "github.com/redis/") && room != "meter/shared" &&
				path != "cmd/shaper/internal/bench" {
				t.Errorf("%s imports %s: only meter/shared knows Redis", path, i)
			}
		}
		for _, i := range slices.Concat(p.TestImports, p.XTestImports) {
			if local, ours := strings.CutPrefix(i, module); ours && local != room &&
				!allowed(local, room, slices.Concat(may, tests)) {
				t.Errorf("a test of %s imports %s", path, local)
			}
		}
	}
}

func roomOf(t *testing.T, path string) (room string, may, tests []string) {
	for _, r := range rooms {
		if path == r.room || strings.HasPrefix(path, r.room+"/") && r.room != "cmd/shaper" {
			return r.room, r.may, r.tests
		}
	}
	t.Errorf("%s belongs to no room", path)
	return path, nil, nil
}

func allowed(local, room string, may []string) bool {
	if strings.HasPrefix(local, room+"/") {
		return true
	}
	for _, m := range may {
		if local == m || m == "cmd/shaper" && strings.HasPrefix(local, m+"/") {
			return true
		}
	}
	return false
}
