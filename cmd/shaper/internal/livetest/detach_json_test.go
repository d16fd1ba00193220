package livetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// detachLine is a line of detach --json.
type detachLine struct {
	Interface  string
	Directions []struct {
		Direction, State, What, Policy string
		ProgramID                      uint32 `json:"program_id"`
		Process                        int
	}
	LostPackets                         int64 `json:"lost_packets"`
	LostAtMost                          bool  `json:"lost_at_most"`
	Removed, Restored, Warnings, Errors []string
}

// states returns the direction and the state of each entry.
func (l *detachLine) states() (out []string) {
	for _, d := range l.Directions {
		out = append(out, d.Direction+" "+d.State)
	}
	return out
}

// detachJSON runs detach --json. The lines must have known fields only, and no null.
func (p *pair) detachJSON(args ...string) (out []detachLine) {
	p.t.Helper()
	text, _ := p.wantExit(0, append([]string{"detach", "--json"}, args...)...)
	if strings.Contains(text, "null") {
		p.t.Errorf("detach --json prints null: %s", text)
	}
	for line := range strings.Lines(text) {
		var l detachLine
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&l); err != nil {
			p.t.Fatalf("%v in %q", err, line)
		}
		if len(l.Errors)+len(l.Warnings) > 0 {
			p.t.Errorf("detach --json %v prints %s", args, line)
		}
		out = append(out, l)
	}
	return out
}

// TestLiveDetachJSON checks that detach --json lists the detached shapers and the removed and restored
// parts, as the kernel and status list them.
func TestLiveDetachJSON(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			p := newQueuePair(t)
			p.near.Run("tc", "qdisc", "replace", "dev", "v0", "root", "handle", "9:", "pfifo", "limit", "77")
			before, qdiscs := p.deviceState(), p.qdiscState()
			gso, _, _ := strings.Cut(strings.TrimPrefix(before, "gso "), " ")
			args := []string{
				"--policy", writePolicy(t, fmt.Sprintf(slowQueue, "50ms")), "--both", "--hook", "tc",
				"--gso-limit", "9000",
			}
			r := p.runShaper(args...)
			r.out.awaitMatch(t, "v0 ingress: attached")
			status := p.status()
			if len(status) != 2 {
				t.Fatalf("status %+v: want two", status)
			}
			if killed {
				r.killWithGuard()
			}
			list := p.detachJSON("v0")
			if len(list) != 1 || list[0].Interface != "v0" {
				t.Fatalf("detach --json prints %+v: want v0", list)
			}
			l := list[0]
			if got := l.states(); len(got) < 2 ||
				!slices.Equal(got[:2], []string{"egress detached", "ingress detached"}) {
				t.Fatalf("got %q: want both directions detached", got)
			}
			for i, s := range status {
				if d := l.Directions[i]; d.ProgramID != s.ProgramID || d.Policy != s.Policy {
					t.Errorf("got %+v: want program %d, policy %s", d, s.ProgramID, s.Policy)
				}
				if want := fmt.Sprintf("v0 %s: program %d by tc", s.Direction,
					s.ProgramID); !slices.Contains(l.Removed, want) {
					t.Errorf("removed %q: want %q", l.Removed, want)
				}
			}
			for _, want := range []string{"v0 egress: root qdisc pfifo 9:", "v0: gso_max_size " + gso} {
				if !slices.Contains(l.Restored, want) {
					t.Errorf("restored %q: want %q", l.Restored, want)
				}
			}
			if now := p.deviceState(); now != before || p.qdiscState() != qdiscs {
				t.Errorf("attached to v0:\n%s%swant\n%s%s", now, p.qdiscState(), before, qdiscs)
			}
			if !killed {
				r.waitForExit()
			}
			p.wantNothingLeft()
			p.wantError(1, "v0 is not shaped: .*", "detach", "v0", "--json")
		})
	}
}

// TestLiveDetachJSONLeft checks the entries of detach --json that are no shapers: state left behind, and
// a process that waits for its interface. With --all, each interface has a line.
func TestLiveDetachJSONLeft(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	p.near.VethNamed("w0", p.far, "w0")
	unbind := p.attachUnreadable("w0", `{"Version":99}`)
	defer unbind()
	r := p.runShaper("--meter", unlimitedMeter)
	p.near.Delete("v0")
	r.err.awaitMatch(t, "v0 is gone .*: waiting for it to come back")
	eventually(t, func() error {
		if s := p.status(); len(s) != 2 || s[0].State != "waiting" {
			return fmt.Errorf("status %+v: want v0, waiting", s)
		}
		return nil
	})
	list := p.detachJSON("--all")
	if len(list) != 2 || list[0].Interface != "v0" || list[1].Interface != "w0" {
		t.Fatalf("detach --json prints %+v: want v0 and w0", list)
	}
	d := list[0].Directions
	if len(d) != 1 || d[0].State != "no longer waiting" || d[0].Process != r.cmd.Process.Pid ||
		d[0].Policy != "--meter "+unlimitedMeter {
		t.Errorf("v0: got %+v: want the process %d, no longer waiting", d, r.cmd.Process.Pid)
	}
	d = list[1].Directions
	if len(d) != 1 || d[0].Direction != "egress" || d[0].State != "cleaned up" || d[0].What == "" ||
		len(list[1].Removed) != 1 {
		t.Errorf("w0: got %+v: want one program, cleaned up", list[1])
	}
	r.wantExit(0)
	p.wantNothingLeft()
	p.wantError(0, "no shaper is attached: .*", "detach", "--all", "--json")
}

// TestLiveConfirmJSON checks that confirm --json lists each direction that it confirmed, and no other.
func TestLiveConfirmJSON(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--both", "--confirm", "10min", "--meter", unlimitedMeter)
	r.out.awaitMatch(t, "v0 ingress: attached")
	for _, direction := range []string{"ingress", "egress"} {
		s := p.status("--direction", direction)
		if len(s) != 1 || s[0].Unconfirmed == nil {
			t.Fatalf("status %+v: want one direction, unconfirmed", s)
		}
		args := []string{"confirm", "v0", "--json"}
		if direction == "ingress" {
			args = append(args, "--direction", direction)
		}
		out, _ := p.wantExit(0, args...)
		const line = `{"interface":"v0","direction":"%s","state":"confirmed","program_id":%d,"policy":"--meter %s"}` +
			"\n"
		want := fmt.Sprintf(line, direction, s[0].ProgramID, unlimitedMeter)
		if out != want {
			t.Errorf("confirm --json prints %q: want %q", out, want)
		}
	}
	p.wantError(1, "v0: nothing to confirm: .*", "confirm", "v0", "--json")
	r.stopBySIGTERM()
	p.wantNothingLeft()
}

// TestLiveTapDetachJSON checks that detach --json lists both directions of a shaper tap, without a program.
func TestLiveTapDetachJSON(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--both", "--meter", unlimitedMeter)
	out, _ := p.wantExit(0, "detach", "--json")
	direction := func(name string) string {
		return `{"direction":"` + name + `","state":"detached","policy":"--meter ` + unlimitedMeter + `"}`
	}
	want := `{"interface":"t0","directions":[` + direction("egress") + "," + direction("ingress") +
		`],"lost_packets":0,"lost_at_most":false,"removed":[],"restored":[],"warnings":[],"errors":[]}` + "\n"
	if out != want {
		t.Errorf("detach --json prints %q: want %q", out, want)
	}
	r.wantExit(0)
}
