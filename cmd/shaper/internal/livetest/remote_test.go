package livetest

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// asUser returns the prefix of commands of a user without privilege, who is in a group.
func asUser(group int) []string {
	return []string{
		"setpriv", fmt.Sprint("--reuid=", nobodyUser), fmt.Sprint("--regid=", nobodyUser), fmt.Sprint("--groups=", group),
	}
}

// ask runs a command as a user of the socket's group, who asks through the socket.
func (s *served) ask(code int, args ...string) (stdout, stderr string) {
	s.t.Helper()
	user := *s.pair
	user.wrap = asUser(writers)
	return user.wantExit(code, append(args, "--control", s.socket)...)
}

// groupOf is the line of a configuration that gives the socket to the group.
var groupOf = fmt.Sprintf("control-group: \"%d\"\n", writers)

// twoQueues is a policy with a link, and meters that never refill.
const twoQueues = `classes:
  - {name: all, meter: {type: token-bucket, rate: 1B/1000s, burst: 150kB}, green: {queue: q}, red: {queue: q}}
links: {wan: {rate: 80mbit}}
queues: {q: {link: wan, limit: 50ms}}
`

// moving matches what differs between two equal readings: ages and intervals, with the numbers of rates.
var moving = regexp.MustCompile(`\(\d+[hms][^)]*\)|over the last \S+|"(rate_interval_ns|total_ns)":\d+`)

// TestLiveRemoteShown compares what commands print for a user without privilege, through the socket, with
// what they print for root.
func TestLiveRemoteShown(t *testing.T) {
	policy, _ := writeMetered(t, "m,192.0.2.1,metered,\nn,192.0.2.2,metered,\n")
	s := newServed(t, groupOf+`interfaces:
  - {match: v0, policy: a.yaml, direction: both}
  - {match: c0, policy: `+policy+`, direction: both}
  - {match: "w?", rate: 50mbit}
`, map[string]string{"a.yaml": twoQueues}, "w1", "w2", "c0")
	s.start()
	s.await("v0 egress", "v0 ingress", "c0 egress", "c0 ingress", "w1 egress", "w2 egress")
	s.wantExit(0, "set", "v0", "link", "wan", "rate=70mbit")
	for _, words := range []string{
		"status", "status v0", "status v0 --direction ingress", "stats", "stats w1", "stats v0 --direction egress",
		"stats v0 --links", "stats c0 --customers", "stats c0 --customers --top 1 --by dropped",
		"stats c0 --customers --by rate", "set v0", "set w1",
	} {
		for _, form := range []string{"", " --json"} {
			args := strings.Fields(words + form)
			eventually(t, func() error { // packets may pass between the readings
				direct, _ := s.wantExit(0, args...)
				asked, _ := s.ask(0, args...)
				direct, asked = moving.ReplaceAllString(direct, ""), moving.ReplaceAllString(asked, "")
				if direct != asked {
					return fmt.Errorf("%v: root sees\n%sthe others\n%s", args, direct, asked)
				}
				if direct == "" && words != "set w1" { // without changes there is no JSON
					return fmt.Errorf("%v prints nothing", args)
				}
				return nil
			})
		}
	}
	for words, want := range map[string]string{
		"status w*":                   "w1 w2",
		"status [vw][01]":             "v0 v0 w1",
		"status --all":                "c0 c0 v0 v0 w1 w2",
		"stats ?0 --direction egress": "c0 v0",
		"stats --all":                 "c0 c0 v0 v0 w1 w2",
		"stats c* --customers":        "c0 c0",
		"stats * --links":             "v0 v0 w1 w2",
	} {
		out, _ := s.ask(0, append(strings.Fields(words), "--json")...)
		var names []string
		for line := range strings.Lines(out) {
			names = append(names, decodeJSON[struct{ Interface string }](t, line).Interface)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: got %s, want %s", words, got, want)
		}
	}
	for words, want := range map[string]string{
		"status x0":                    `interface "x0" is not shaped by this process: .*`,
		"stats x*":                     `interface "x\*" is not shaped by this process: .*`,
		"stats w1 --direction ingress": `w1 is not shaped at ingress by the process of .*`,
		"stats w1 --customers":         `.*no customers.*`,
		"stats c0 --links":             `.*no packet is queued on a link.*`,
	} {
		_, got := s.ask(1, strings.Fields(words)...)
		if !regexp.MustCompile(`^shaper: ` + want + "\n$").MatchString(got) {
			t.Errorf("%s: got %q, want %s", words, got, want)
		}
	}
	if _, got := s.ask(2, "stats", "v0", "--all"); !strings.Contains(got, "not both") {
		t.Errorf("an interface and --all: %q", got)
	}
}

// classOf returns the name of the first class at an interface.
func (s *served) classOf(name string) string {
	s.t.Helper()
	out, _ := s.ask(0, "stats", name, "--json")
	line, _, _ := strings.Cut(out, "\n")
	return decodeJSON[struct{ Classes []struct{ Name string } }](s.t, line).Classes[0].Name
}

// TestLiveRemoteChanges changes, reloads and detaches interfaces by name, by pattern and all of them, as a
// user without privilege.
func TestLiveRemoteChanges(t *testing.T) {
	s := newServed(t, groupOf+`interfaces:
  - {match: "a?", policy: a.yaml, direction: both}
  - {match: "b?", policy: b.yaml}
`, map[string]string{"a.yaml": twoQueues, "b.yaml": twoQueues}, "a0", "a1", "b0")
	s.start()
	all := []string{"a0 egress", "a0 ingress", "a1 egress", "a1 ingress", "b0 egress"}
	s.await(all...)
	want := func(words, pattern string) {
		t.Helper()
		out, _ := s.ask(0, strings.Fields(words)...)
		if !regexp.MustCompile(`^` + pattern + `$`).MatchString(out) {
			t.Errorf("%s: got %q, want %s", words, out, pattern)
		}
	}
	refused := func(code int, words, pattern string) {
		t.Helper()
		out, got := s.ask(code, strings.Fields(words)...)
		if out != "" || !regexp.MustCompile(`^shaper: `+pattern+"\n$").MatchString(got) {
			t.Errorf("%s: got %q, %q, want %s", words, out, got, pattern)
		}
	}

	want("set a0 link wan rate=7mbit", `a0: link "wan": rate 7mbit\n`)
	want("set a* link wan rate=8mbit --json", `\{"kind":"link","name":"wan","parameters":\{"rate":"8mbit"\},.*"user":"nobody".*\}\n`)
	want("set --all link wan rate=9mbit", `\*: link "wan": rate 9mbit\n`)
	for _, name := range []string{"a0", "a1", "b0"} {
		want("set "+name, name+`: link "wan": rate 9mbit, since .* by nobody with the API\n`)
	}
	want("set ?0", `(?s)a0: link .*\nb0: link .*\n`)
	refused(1, "set a* link lan rate=9mbit", `a0: no link "lan" in the policy \(did you mean "wan"\?\)\nshaper: a1: no link "lan" in the policy \(did you mean "wan"\?\)`)
	refused(1, "set c0 link wan rate=9mbit", `interface "c0" is not shaped by this process.*`)
	refused(2, "set a0 link wan rate=9mbit --direction egress", `--direction does not work through the control socket .*`)
	s.ask(0, "set", "*", "link", "wan", "reset")

	next := strings.Replace(twoQueues, "name: all", "name: next", 1)
	s.write("a.yaml", next)
	s.write("b.yaml", next)
	want("reload b*", `b0 egress: reloaded, program \d+, policy \S*b.yaml\n(b0 egress: class .*\n)+`)
	if a, b := s.classOf("a0"), s.classOf("b0"); a != "all" || b != "next" {
		t.Errorf("a reload of b* left a0 with %s, b0 with %s", a, b)
	}
	// a1 has the policy of the same file
	want("reload a0 --json", `(\{"interface":"a[01]","direction":".*","program_id":\d+,"policy":".*","classes":\[.*"change":"new"\}.*\],"changes":\[\]\}\n){4}`)
	want("reload --all", `3 interfaces: unchanged\n`)
	if a := s.classOf("a1"); a != "next" {
		t.Errorf("a reload of all left a1 with %s", a)
	}
	refused(2, "reload", "several interfaces are shaped, name one or give --all: a0, a1, b0")
	refused(2, "reload a0 --policy x.yaml", "the process reads the policy files that it was started with: .*")
	refused(2, "reload a0 --direction egress", "--direction does not work through the control socket .*")
	s.write("b.yaml", "nonsense: 1\n")
	refused(2, "reload b0", `.*b.yaml:1:1: .*`)
	s.write("b.yaml", next)

	want("detach a0 --direction ingress", "a0 ingress: detached\n")
	refused(1, "detach a0 --direction ingress", `a0: it is not shaped in this direction`)
	refused(2, "detach", "several interfaces are shaped, name one or give --all: a0, a1, b0")
	want("detach a?", "a0 egress: detached\na1 egress: detached\na1 ingress: detached\n")
	s.await("a0 egress not shaped: detached", "a0 ingress not shaped: detached", "a1 egress not shaped: detached",
		"a1 ingress not shaped: detached", "b0 egress")
	want("reload a1", "1 interface: attaching\n")
	s.await("a0 egress not shaped: detached", "a0 ingress not shaped: detached", "a1 egress", "a1 ingress", "b0 egress")
	want("detach --all --json", `(\{"interface":"(a1|b0)","directions":\[.*"state":"detached".*\],.*"errors":\[\]\}\n){2}`)
	refused(0, "detach --all", "no interface is shaped by this process")
	refused(1, "confirm --all", "nothing to confirm: .*|no interface is shaped by this process")
	refused(1, "detach a0", `interface "a0" is not shaped by this process: .*`)
	refused(1, "stats", "no interface is shaped by the process of .*")
	s.addLink("a2") // what appears is shaped
	s.await("a0 egress not shaped: detached", "a0 ingress not shaped: detached", "a1 egress not shaped: detached",
		"a1 ingress not shaped: detached", "b0 egress not shaped: detached", "a2 egress", "a2 ingress")
	want("reload --all", "1 interface: unchanged\n3 interfaces: attaching\n")
	s.await(append(slices.Clone(all), "a2 egress", "a2 ingress")...)
	s.run.stopBySIGTERM()
	s.wantNothing()
}

// TestLiveRemoteConfirm reloads with a confirmation: without it the policy before returns, also if the
// process is killed. Interfaces that appear meanwhile get the policy that is confirmed.
func TestLiveRemoteConfirm(t *testing.T) {
	s := newServed(t, groupOf+`interfaces:
  - {match: v0, policy: a.yaml, pin: true}
  - {match: "a*", policy: a.yaml, direction: both}
`, map[string]string{"a.yaml": fixed}, "a0")
	s.start()
	s.await("v0 egress attached, pinned", "a0 egress", "a0 ingress")
	classes := func(want string, names ...string) {
		t.Helper()
		eventually(t, func() error {
			for _, name := range names {
				if got := s.classOf(name); got != want {
					return fmt.Errorf("%s has class %s, want %s: %q", name, got, want, &s.run.err)
				}
			}
			return nil
		})
	}
	if _, got := s.ask(1, "confirm", "--all"); !strings.Contains(got, "nothing to confirm") {
		t.Errorf("without a reload: %q", got)
	}
	s.write("a.yaml", strings.Replace(fixed, "all", "next", 1))
	out, _ := s.ask(0, "reload", "a0", "--confirm", "2s")
	if !strings.Contains(out, "a0 ingress: reloaded, ") || !strings.Contains(out, "rolls back in 2s unless") ||
		strings.Contains(out, "v0") {
		t.Errorf("reload of a0 prints %q", out)
	}
	s.addLink("a1")
	s.await("v0 egress attached, pinned", "a0 egress", "a0 ingress", "a1 egress", "a1 ingress")
	classes("all", "v0", "a0", "a1") // after the rollback, at a0
	s.run.err.awaitMatch(t, `a0 ingress: not confirmed in time: rolled back to policy .*a.yaml`)
	if _, got := s.ask(1, "confirm", "a0"); !strings.Contains(got, "nothing to confirm") {
		t.Errorf("after the rollback: %q", got)
	}

	s.ask(0, "reload", "--all", "--confirm", "1h")
	classes("next", "v0", "a0", "a1")
	s.addLink("a2")
	s.await("v0 egress attached, pinned", "a0 egress", "a0 ingress", "a1 egress", "a1 ingress", "a2 egress", "a2 ingress")
	classes("all", "a2")
	if out, _ := s.ask(0, "confirm", "a0"); out != "a0 egress: confirmed\na0 ingress: confirmed\n" {
		t.Errorf("confirm a0 prints %q", out)
	}
	classes("all", "a2") // v0 and a1 are not confirmed
	out, _ = s.ask(0, "confirm", "[av][01]", "--json")
	if n := strings.Count(out, `"state":"confirmed"`); n != 3 || strings.Contains(out, "a0") {
		t.Errorf("confirm of the others prints %q", out)
	}
	classes("next", "v0", "a0", "a1", "a2")

	s.write("a.yaml", strings.Replace(fixed, "all", "third", 1))
	s.ask(0, "reload", "v0", "--confirm", "3s")
	classes("third", "v0")
	s.run.killAndWait()
	eventually(t, func() error {
		out, _ := s.wantExit(0, "stats", "v0", "--json")
		if !strings.Contains(out, `"name":"next"`) {
			return errors.New(out)
		}
		return nil
	})
	s.start()
	s.await("v0 egress attached, pinned", "a0 egress", "a0 ingress", "a1 egress", "a1 ingress", "a2 egress", "a2 ingress")
	classes("third", "v0") // as in the file
	s.write("a.yaml", fixed)
	s.ask(0, "reload", "v0", "--confirm", "1h")
	classes("all", "v0")
	s.run.stopBySIGTERM()
	if out, _ := s.wantExit(0, "stats", "v0", "--json"); !strings.Contains(out, `"name":"third"`) {
		t.Errorf("after the end of the process, v0 keeps what nobody confirmed: %s", out)
	}
	s.wantExit(0, "detach", "--all")
}

// TestLiveRemoteConfirmAll reloads with a confirmation where one interface cannot have the policy: all keep
// the one before.
func TestLiveRemoteConfirmAll(t *testing.T) {
	s := newServed(t, groupOf+"interfaces: [{match: \"a*\", policy: a.yaml}]\n",
		map[string]string{"a.yaml": fixed}, "a0", "a1")
	s.near.Run("tc", "qdisc", "add", "dev", "a1", "root", "handle", "9:", "htb")
	s.near.Run("tc", "filter", "add", "dev", "a1", "parent", "9:", "protocol", "ip", "u32", "match", "u32", "0", "0",
		"classid", "9:1") // nobody can restore it
	s.start()
	s.await("a0 egress", "a1 egress")
	s.write("a.yaml", twoQueues)
	_, got := s.ask(1, "reload", "--all", "--confirm", "1h")
	if !strings.Contains(got, "a1: ") || !strings.Contains(got, "not reloaded") {
		t.Errorf("reload says %q", got)
	}
	s.run.err.awaitMatch(t, `a0 egress: not reloaded at all interfaces: rolled back to policy .*a.yaml`)
	for _, name := range []string{"a0", "a1"} {
		if out, _ := s.wantExit(0, "stats", name, "--json"); strings.Contains(out, "wan") {
			t.Errorf("%s has the new policy: %s", name, out)
		}
	}
}

// TestLiveRemoteRefused checks that commands of a user outside the group, and changes through a socket for
// reading, change nothing and say why.
func TestLiveRemoteRefused(t *testing.T) {
	s := newServed(t, groupOf+fmt.Sprintf(`control-read: read.sock
control-read-group: "%d"
interfaces: [{match: v0, policy: a.yaml}]
`, readers), map[string]string{"a.yaml": twoQueues})
	for dir := s.dir; len(dir) > len("/tmp"); dir = filepath.Dir(dir) {
		s.near.Run("chmod", "a+x", dir)
	}
	s.start()
	s.await("v0 egress")
	commands := []string{
		"status", "stats v0", "stats v0 --links", "set v0", "set v0 link wan rate=1mbit", "reload v0", "reload --all --confirm 9s",
		"confirm v0", "detach v0", "detach --all",
	}
	for _, words := range commands {
		user := *s.pair
		user.wrap = asUser(readers)
		args := strings.Fields(words)
		user.wantError(1, "control socket .*: no permission: .*", append(args, "--control", s.socket)...)
		user.wantError(1, "control socket .*/nothing: there is none: .*", append(args, "--control", "/tmp/nothing")...)
		reading := append(args, "--control", filepath.Join(s.dir, "read.sock"))
		if args[0] == "status" || args[0] == "stats" || len(args) == 2 && args[0] == "set" {
			user.wantExit(0, reading...)
		} else {
			user.wantError(1, ".*this socket is for reading: use that of --control", reading...)
		}
	}
	s.wantExit(2, "status", "--control", "")
	if now := s.states(""); !slices.Equal(now, []string{"v0 egress attached"}) {
		t.Errorf("after refused commands: %v", now)
	}
}

// TestLiveRemoteDefault asks at the default socket if a user may not look at the kernel, and only then.
func TestLiveRemoteDefault(t *testing.T) {
	skipInVM(t)
	s := newServed(t, groupOf+"interfaces: [{match: v0, policy: a.yaml}]\n", map[string]string{"a.yaml": twoQueues})
	s.start()
	s.await("v0 egress")
	user := *s.pair
	user.wrap = asUser(writers)
	user.withMounts("mount -t tmpfs -o mode=755 tmpfs /run; ln -s " + s.socket + " /run/shaper.sock")
	mounts := user.wrap
	user.wrap = append(slices.Clone(mounts), asUser(writers)...)
	if out, _ := user.wantExit(0, "status"); !strings.Contains(out, "v0 egress: attached by process ") {
		t.Errorf("status prints %q", out)
	}
	user.wantExit(0, "set", "v0", "link", "wan", "rate=7mbit")
	user.wrap = mounts
	s.near.Run("ip", "link", "set", "v0", "up")
	if out, _ := user.wantExit(0, "set", "v0", "--json"); !strings.Contains(out, `"7mbit"`) {
		t.Errorf("root sees %q", out)
	}
	s.run.stopBySIGTERM()
	if out, _ := user.wantExit(0, "status"); !strings.HasPrefix(out, "no shaper is attached") {
		t.Errorf("root asks the socket of an ended process: %q", out)
	}
	user.wrap = append(slices.Clone(mounts), asUser(writers)...)
	user.wantError(1, ".*finding a shaper needs root.* --control SOCKET.*", "status") // the socket is gone: a broken link remains
}

// TestLiveRemoteRun asks shaper run: it ends when it is detached, after the answer.
func TestLiveRemoteRun(t *testing.T) {
	p := newPair(t)
	sockets := newControlSockets(t)
	s := &served{pair: p, socket: sockets.write}
	policy := writePolicy(t, fixed)
	s.run = p.runShaper(sockets.flags("--both", "--policy", policy)...)
	rewriteFile(t, policy, strings.Replace(fixed, "all", "next", 1))
	back := `^`
	for _, span := range []string{"1ms", "1s"} { // before the next check of the process, and after some
		s.ask(0, "reload", "v0", "--confirm", span)
		for _, direction := range []string{"egress", "ingress"} {
			back += `shaper: v0 ` + direction + `: not confirmed in time: rolled back to policy [^\n]*\n`
		}
		s.run.err.awaitMatch(t, back+`$`)
		if got := s.classOf("v0"); got != "all" {
			t.Errorf("after the rollback the class is %s", got)
		}
	}
	s.ask(0, "reload", "--confirm", "1h")
	p.near.Run("ip", "link", "del", "v0")
	s.run.err.awaitMatch(t, `v0 is gone`)
	p.near.Run("ip", "link", "add", "v0", "type", "veth", "peer", "name", "peer")
	s.await("v0 egress", "v0 ingress")
	if got := s.classOf("v0"); got != "all" {
		t.Errorf("an interface that is back has class %s, which nobody confirmed", got)
	}
	s.ask(0, "reload", "--confirm", "1h")
	if out, _ := s.ask(0, "confirm"); out != "v0 egress: confirmed\nv0 ingress: confirmed\n" {
		t.Errorf("confirm prints %q", out)
	}
	if got := s.classOf("v0"); got != "next" {
		t.Errorf("the confirmed class is %s", got)
	}
	if out, _ := s.ask(0, "detach", "--direction", "egress"); out != "v0 egress: detached\n" {
		t.Errorf("detach of egress prints %q", out)
	}
	if out, _ := s.ask(0, "detach"); out != "v0 ingress: detached\n" {
		t.Errorf("detach prints %q", out)
	}
	s.run.wantExit(0)
	sockets.wantGone(t)
}

// TestLiveRemoteEnd stops shaper run while a policy waits for its confirmation: the policy before stays.
func TestLiveRemoteEnd(t *testing.T) {
	p := newPair(t)
	sockets := newControlSockets(t)
	s := &served{pair: p, socket: sockets.write}
	policy := writePolicy(t, fixed)
	s.run = p.runShaper(sockets.flags("--pin", "--policy", policy)...)
	rewriteFile(t, policy, strings.Replace(fixed, "all", "next", 1))
	s.ask(0, "reload", "--confirm", "1h")
	s.run.stopBySIGTERM()
	wantMatch(t, s.run.err.String(),
		`^shaper: v0 egress: not confirmed before the end: rolled back to policy [^\n]*\n$`)
	if now := p.stats(); now.Classes[0].Name != "all" || now.Unconfirmed != nil {
		t.Errorf("%+v is attached, want class all", now)
	}
}

// TestLiveRemoteTap asks shaper tap, which cannot roll back, and ends as a whole.
func TestLiveRemoteTap(t *testing.T) {
	p := newTAPPair(t)
	sockets := newControlSockets(t)
	s := &served{pair: p, socket: sockets.write}
	s.run = p.startShaper(append([]string{"tap", "t0", "--uplink", "v0", "--policy", writePolicy(t, fixed)},
		sockets.flags("--both")...)...)
	s.run.awaitPrinted("moving frames")
	out, _ := s.ask(0, "status")
	direct, _ := s.wantExit(0, "status")
	if out = moving.ReplaceAllString(out, ""); out != moving.ReplaceAllString(direct, "") || out == "" {
		t.Errorf("status through the socket\n%s, directly\n%s", out, direct)
	}
	s.ask(0, "reload", "t0")
	for _, words := range []string{"reload t0 --confirm 9s", "confirm t0"} {
		code := 1
		if words != "confirm t0" {
			code = 2
		}
		if _, got := s.ask(code, strings.Fields(words)...); !strings.Contains(got, "not supported by shaper tap") {
			t.Errorf("%s: %q", words, got)
		}
	}
	if _, got := s.ask(1, "detach", "--direction", "egress"); !strings.Contains(got, "only as a whole") {
		t.Errorf("detach of a direction: %q", got)
	}
	if out, _ := s.ask(0, "detach"); out != "t0 egress: detached\nt0 ingress: detached\n" {
		t.Errorf("detach prints %q", out)
	}
	s.run.wantExit(0)
}

// TestLiveRemoteCustomers adds, shows, lists, exports and removes customers through the socket, and compares
// with what root sees.
func TestLiveRemoteCustomers(t *testing.T) {
	policy, _ := writeMetered(t, "m,192.0.2.1,metered,\nn,192.0.2.2,metered,\n")
	s := newServed(t, groupOf+"interfaces:\n  - {match: v0, policy: "+policy+", direction: both}\n", nil)
	s.start()
	s.await("v0 egress", "v0 ingress")
	want := func(code int, want string, args ...string) {
		t.Helper()
		out, err := s.ask(code, append([]string{"customer"}, args...)...)
		if got := out + err; !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%v: got %q, want %q", args, got, want)
		}
	}
	want(0, "v0: customer o: added\n", "add", "v0", "o", "address=192.0.2.3", "plan=metered", "idle=10min")
	want(0, "v0: customer o: unchanged\n", "add", "v0", "o", "address=192.0.2.3", "plan=metered", "idle=10min")
	want(0, `"done":"replaced"`, "add", "v0", "o", "--patch", "address=192.0.2.4", "--json")
	for _, args := range [][]string{
		{"show", "v0", "o"},
		{"show", "v0", "192.0.2.4"},
		{"show", "v0", "m", "--json"},
		{"list", "v0"},
		{"list", "v0", "--added"},
		{"list", "v0", "--of-file", "--json"},
		{"list", "v0", "--filter", "n"},
		{"list", "v0", "--plan", "none"},
		{"export", "v0"},
	} {
		direct, _ := s.wantExit(0, append([]string{"customer"}, args...)...)
		if want(0, direct, args...); direct == "" {
			t.Errorf("%v prints nothing", args)
		}
	}
	want(1, "no customer has the name or the address p", "show", "v0", "p")
	want(1, "plan", "add", "v0", "p", "address=192.0.2.9", "plan=gold")
	want(1, `interface "x0" is not shaped by this process`, "list", "x0")
	want(2, "--direction does not work through the control socket", "list", "v0", "--direction", "egress")
	want(0, "v0: customer m: removed\nv0: customer o: removed\n", "remove", "v0", "m", "o")
	want(0, "v0: customer m: added\n", "remove", "v0", "m", "--reset")
	want(0, "customer,", "export", "v0")
}
