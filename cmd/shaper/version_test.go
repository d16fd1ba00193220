package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
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
		// In a clone go build records a pseudo-version after the last tag, which may be missing.
		{
			"v0.0.0-20261127053845-05416525d87d", set("vcs.modified", "false", "vcs.revision", commit),
			"v0.2.0 05416525d87d",
		},
		{"v0.2.0", set("vcs.revision", commit, "vcs.modified", "false"), "v0.2.0 05416525d87d"},
		{"v0.2.0+dirty", set("vcs.revision", commit, "vcs.modified", "true"), "v0.2.0 05416525d87d+modified"},
		{"(devel)", set("vcs.modified", "false", "vcs.revision", commit), "v0.2.0 05416525d87d"},
		{"", set("vcs.revision", "0541"), "v0.2.0 0541"},
		{"v0.1.7", nil, "v0.1.7"}, // go install MODULE@v0.1.7
		{"v0.2.1-0.20261127053845-05416525d87d", nil, "v0.2.1-0.20261127053845-05416525d87d"},
		{"(devel)", nil, "v0.2.0"}, // go build -buildvcs=false, go test
		{"", nil, "v0.2.0"},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: tt.module}, Settings: tt.settings}
		got := describe(info, "")
		if got.String() != tt.want {
			t.Errorf("%q, %v: %s, want %s", tt.module, tt.settings, got, tt.want)
		}
	}
}

// TestVersionOfArchive checks that git writes the commit into an archive, and that a build of it prints it.
func TestVersionOfArchive(t *testing.T) {
	t.Parallel()
	git := func(args ...string) string {
		out, err := exec.Command("git", append([]string{"-C", "../.."}, args...)...).Output()
		if err != nil {
			t.Skipf("needs a clone: git %v: %v", args, err)
		}
		return string(out)
	}
	commit := strings.TrimSpace(git("rev-parse", "HEAD"))
	archive := exec.Command("tar", "-xO", "cmd/shaper/version.go")
	archive.Stdin = strings.NewReader(git("archive", "--worktree-attributes", "HEAD", "cmd/shaper/version.go"))
	source, err := archive.Output()
	if want := fmt.Sprintf("\nconst archived = %q\n", commit); err != nil || !strings.Contains(string(source), want) {
		t.Errorf("the archive's version.go has no %s (%v)", want, err)
	}
	if got := describe(&debug.BuildInfo{}, commit); got.String() != release+" "+commit[:12] {
		t.Errorf("%s", got)
	}
}

// TestVersionJSON checks that version --json names the commit in full, and omits fields that the
// build does not record.
func TestVersionJSON(t *testing.T) {
	t.Parallel()
	const commit = "05416525d87dbe8e88698df474565d04366d1744"
	built := `,"go":"` + runtime.Version() + `","os":"` + runtime.GOOS + `","arch":"` + runtime.GOARCH + `"}`
	recorded := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{
			{Key: "vcs.revision", Value: commit}, {Key: "vcs.modified", Value: modified},
		}
	}
	for _, tt := range []struct {
		module   string
		settings []debug.BuildSetting
		want     string
	}{
		{"v0.1.0", recorded("false"), `{"version":"v0.2.0","commit":"` + commit + `","modified":false`},
		{"(devel)", recorded("true"), `{"version":"v0.2.0","commit":"` + commit + `","modified":true`},
		{"v0.1.7", nil, `{"version":"v0.1.7"`},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: tt.module}, Settings: tt.settings}
		got, err := json.Marshal(describe(info, ""))
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
	if want := "shaper " + got.String() + " " + got.Go + " " + got.OS + "/" + got.Arch + "\n"; text != want {
		t.Errorf("version prints %q and --json %s", text, out)
	}
}

// TestReleaseOfChangelog checks that the version of the source is the latest of the changelog.
func TestReleaseOfChangelog(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	latest := regexp.MustCompile(`(?m)^## \[([0-9.]+)\] - \d{4}-\d{2}-\d{2}$`).FindSubmatch(text)
	if latest == nil || "v"+string(latest[1]) != release {
		t.Errorf("the command's version is %s, the changelog's %q", release, latest)
	}
}
