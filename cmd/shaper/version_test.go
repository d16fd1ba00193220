package main

import (
	"encoding/json"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

func TestVersion(t *testing.T) {
	set := func(pairs ...string) (out []debug.BuildSetting) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return out
	}
	const commit = "05416525d87dbe8e88698df474565d04366d1744"
	for _, tt := range []struct {
		module   string
		settings []debug.BuildSetting
		want     string
	}{
		{"v0.1.0", set("vcs.revision", commit, "vcs.modified", "false"), "v0.1.0"},
		{"v0.1.0+dirty", set("vcs.revision", commit, "vcs.modified", "true"), "v0.1.0+dirty"},
		{"(devel)", set("vcs.modified", "false", "vcs.revision", commit), "05416525d87d"},
		{"", set("vcs.modified", "true", "vcs.revision", commit), "05416525d87d+dirty"},
		{"", set("vcs.revision", "0541"), "0541"},
		{"(devel)", nil, "(devel)"}, // go build -buildvcs=false, go test
		{"", nil, "unknown"},
	} {
		got := describe(&debug.BuildInfo{Main: debug.Module{Version: tt.module}, Settings: tt.settings})
		if got.Version != tt.want {
			t.Errorf("%q, %v: %s, want %s", tt.module, tt.settings, got.Version, tt.want)
		}
	}
}

// TestVersionJSON checks that version --json names the commit in full, and omits fields that the build does not record.
func TestVersionJSON(t *testing.T) {
	t.Parallel()
	const commit = "05416525d87dbe8e88698df474565d04366d1744"
	built := `,"go":"` + runtime.Version() + `","os":"` + runtime.GOOS + `","arch":"` + runtime.GOARCH + `"}`
	recorded := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: commit}, {Key: "vcs.modified", Value: modified}}
	}
	for _, tt := range []struct {
		module   string
		settings []debug.BuildSetting
		want     string
	}{
		{"v0.1.0", recorded("false"), `{"version":"v0.1.0","commit":"` + commit + `","modified":false`},
		{"(devel)", recorded("true"), `{"version":"05416525d87d+dirty","commit":"` + commit + `","modified":true`},
		{"(devel)", nil, `{"version":"(devel)"`},
	} {
		got, err := json.Marshal(describe(&debug.BuildInfo{Main: debug.Module{Version: tt.module}, Settings: tt.settings}))
		if want := tt.want + built; err != nil || string(got) != want {
			t.Errorf("%q, %v: %s (%v), want %s", tt.module, tt.settings, got, err, want)
		}
	}
	_, text, _ := command("", "version")
	code, out, errs := command("", "version", "--json")
	var got versionJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != cli.ExitDone || errs != "" {
		t.Fatalf("exit %d: %v: %q, stderr %q", code, err, out, errs)
	}
	if want := "shaper " + got.Version + " " + got.Go + " " + got.OS + "/" + got.Arch + "\n"; text != want {
		t.Errorf("version prints %q and --json %s", text, out)
	}
}
