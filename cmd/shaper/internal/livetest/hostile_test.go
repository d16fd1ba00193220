package livetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLiveHostileFiles checks that root follows no link and uses no directory that another user
// could have created.
func TestLiveHostileFiles(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	queues := writePolicy(t, fmt.Sprintf(slowQueue, "50ms"))
	for _, row := range []struct {
		name, script, want string // %[1]d is the cookie, %[2]d the index, %[3]s a file
		args               []string
	}{
		{
			"lock is a link", "mkdir -m 700 /run/shaper; chown 65534 /run/shaper; ln -s %[3]s /run/shaper/%[1]d-%[2]d-change",
			".*/run/shaper/.*-change.*",
			[]string{"--meter", unlimitedMeter},
		},
		{
			"temporary journal is a link", "mkdir -m 700 /run/shaper; chown 65534 /run/shaper; ln -s %[3]s /run/shaper/%[1]d-%[2]d-journal.new",
			"",
			[]string{"--policy", queues},
		},
		{
			"journal is a link", "mkdir -m 700 /run/shaper; ln -s %[3]s /run/shaper/%[1]d-%[2]d-journal",
			"", // shaper sets it aside
			[]string{"--policy", queues},
		},
		{
			"journal is a folder", "mkdir -m 700 /run/shaper; mkdir /run/shaper/%[1]d-%[2]d-journal",
			"", // shaper sets it aside
			[]string{"--policy", queues},
		},
		{
			"folder for all", "mkdir -m 777 /run/shaper", "/run/shaper is writable by other users .*", []string{"--meter", unlimitedMeter},
		},
		{
			"pins of another user", "mount -t bpf -o mode=1777 bpf /sys/fs/bpf; mkdir -m 700 /sys/fs/bpf/shaper; chown 65534 /sys/fs/bpf/shaper",
			".*/sys/fs/bpf/shaper belongs to user 65534, who could detach shapers: .*",
			[]string{"--hook", "tcx", "--pin", "--meter", unlimitedMeter},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := newPair(t)
			victim := filepath.Join(t.TempDir(), "victim")
			rewriteFile(t, victim, "untouched")
			before := p.deviceState()
			script := "mount -t tmpfs tmpfs /run; " + row.script
			if strings.Contains(script, "%[") {
				script = fmt.Sprintf(script, p.near.Cookie(), p.near.Index("v0"), victim)
			}
			p.withMounts(script)
			if row.want == "" {
				p.runShaper(row.args...).stopBySIGTERM()
			} else {
				p.wantError(1, row.want, append([]string{"run", "v0"}, row.args...)...)
			}
			p.wantState(before)
			if text, err := os.ReadFile(victim); err != nil || string(text) != "untouched" {
				t.Errorf("the link's target contains %q, %v: want it unchanged", text, err)
			}
		})
	}
}

// TestLiveUnexpectedFile checks that a file that shaper did not create blocks the commands of
// at most one interface, and is reported.
func TestLiveUnexpectedFile(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, kind := range []string{"journal", "change"} {
		t.Run(kind, func(t *testing.T) {
			p := newPair(t)
			p.near.VethNamed("w0", p.far, "w0")
			strange := fmt.Sprintf("/run/shaper/%d-%d-%s", p.near.Cookie(), p.near.Index("w0"), kind)
			p.withMounts("mount -t tmpfs tmpfs /run; mkdir -m 700 /run/shaper; mkdir " + strange)
			before := p.deviceState()
			r := p.runShaper("--meter", unlimitedMeter)
			out, _ := p.wantExit(0, "status")
			if !strings.HasPrefix(out, "v0 egress: attached") ||
				(kind == "journal") != strings.Contains(out, strange+" is not a file that shaper made") {
				t.Errorf("status prints %q", out)
			}
			p.wantExit(0, "stats", "v0")
			p.wantExit(0, "reload", "v0", "--meter", unlimitedMeter)
			p.wantExit(0, "detach", "v0")
			if code := r.waitForExit(); code != 0 {
				t.Errorf("exit %d: %s", code, &r.err)
			}
			p.wantState(before)
			if kind == "journal" {
				p.wantExit(0, "detach", "w0")
			} else {
				p.wantError(1, ".*"+strange+" is not a file that shaper made.*", "run", "w0", "--meter",
					unlimitedMeter)
			}
			if out, _ := p.wantExit(0, "status"); strings.Contains(out, strange) {
				t.Errorf("status prints %q", out)
			}
		})
	}
}
