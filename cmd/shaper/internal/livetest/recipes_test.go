package livetest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// recipe is a directory of docs/recipes at work: its files are /etc/shaper, for shaper serve and other
// programs in the near namespace of a pair. They have an /etc, a /run and a /var/lib of their own.
type recipe struct {
	*served
	root string // their root directory, seen from here
}

// newRecipe copies a recipe. near is the name of the pair's interface in near; the one in far is v0.
// needs are programs with their packages.
func newRecipe(t *testing.T, name, near string, needs ...[2]string) *recipe {
	t.Helper()
	for _, need := range append(needs, [2]string{"curl", "curl"}, [2]string{"jq", "jq"}) {
		if _, err := exec.LookPath(need[0]); err != nil {
			t.Skipf("needs %s: apt-get install %s", need[0], need[1])
		}
	}
	t.Parallel()
	return newRecipeHost(t, name, near)
}

// newRecipeHost creates one more host with the files of a recipe.
func newRecipeHost(t *testing.T, name, near string) *recipe {
	t.Helper()
	p := &pair{t: t, near: nettest.New(t), far: nettest.New(t)}
	p.near.VethNamed(near, p.far, "v0")
	files, err := filepath.Abs("../../../../docs/recipes")
	if err != nil {
		t.Fatal(err)
	}
	p.withMounts(fmt.Sprintf(`mount -t tmpfs -o mode=0755 tmpfs /run
cp -a /etc /run/etc
mount --bind /run/etc /etc
mount -t tmpfs -o mode=0755 tmpfs /var/lib
mount -t bpf -o mode=0700 bpf /sys/fs/bpf
mkdir -p /etc/shaper /var/lib/misc /var/lib/shaper
cp -r %s/session %[1]s/%s/. /etc/shaper`, files, name))
	r := &recipe{served: &served{pair: p}, root: "/proc/" + p.wrap[len(p.wrap)-1] + "/root"}
	r.dir, r.socket = r.root+"/etc/shaper", r.root+"/run/shaper.sock"
	return r
}

// edit replaces a text of a file, which must be there once.
func (r *recipe) edit(file, old, replacement string) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, file))
	if err != nil {
		r.t.Fatal(err)
	}
	if n := strings.Count(string(text), old); n != 1 {
		r.t.Fatalf("%s contains %q %d times: want 1", file, old, n)
	}
	r.write(file, strings.Replace(string(text), old, replacement, 1))
}

// fix gives a plan a bucket without a rate, so that what passes can be counted. limits is the text of the
// file.
func (r *recipe) fix(file, limits string, burst int) {
	r.t.Helper()
	r.edit(file, limits, fmt.Sprintf("rate: 1B/1000s, burst: %dB", burst))
}

// serve starts shaper serve as the service does.
func (r *recipe) serve(want ...string) {
	r.t.Helper()
	r.run = r.startShaper("serve")
	r.await(want...)
}

// command returns a command with the files of the recipe, and shaper. It runs in the namespace that starts
// it.
func (r *recipe) command(args ...string) *exec.Cmd {
	r.t.Helper()
	shaper, err := buildShaper()
	if err != nil {
		r.t.Fatal(err)
	}
	args = append(append([]string{}, r.wrap...), args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(shaper)+":"+os.Getenv("PATH"))
	return cmd
}

// in runs a command with the files of the recipe in a namespace, and returns its output.
func (r *recipe) in(n *nettest.Namespace, args ...string) (out string, err error) {
	r.t.Helper()
	cmd := r.command(args...)
	n.Do(func() {
		var text []byte
		text, err = cmd.CombinedOutput()
		out = string(text)
	})
	return out, err
}

// must runs a command in the near namespace.
func (r *recipe) must(args ...string) string {
	r.t.Helper()
	out, err := r.in(r.near, args...)
	if err != nil {
		r.t.Fatalf("%q: %v: %s", args, err, out)
	}
	return out
}

// background starts a command in a namespace, until the test ends. Its children end with it.
func (r *recipe) background(n *nettest.Namespace, args ...string) *process {
	r.t.Helper()
	cmd := r.command(args...)
	p := &process{t: r.t, cmd: cmd}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	n.Start(cmd)
	return p
}

// wantPassed sends packets and checks how many arrive.
func (r *recipe) wantPassed(what string, in *receiver, want int, send func()) {
	r.t.Helper()
	send()
	if got := len(in.receiveAll()); got != want {
		r.t.Errorf("%s: %d packets passed: want %d", what, got, want)
	}
}

// TestRecipePage checks that docs/RECIPES.md names each file of the recipes, and that scripts can be run.
func TestRecipePage(t *testing.T) {
	skipInVM(t)
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/RECIPES.md")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	err = filepath.WalkDir("../../../../docs/recipes", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		if link := "](" + strings.TrimPrefix(path, "../../../../docs/") + ")"; !strings.Contains(string(page), link) {
			t.Errorf("docs/RECIPES.md lacks %s", link)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if script := strings.HasPrefix(string(text), "#!"); err == nil && script != (info.Mode()&0o111 != 0) {
			t.Errorf("%s: mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil || files < 20 {
		t.Errorf("%d files: %v", files, err)
	}
}

// TestRecipePolicies checks all policies of the recipes strictly. The page explains the warnings of three.
func TestRecipePolicies(t *testing.T) {
	skipInVM(t)
	t.Parallel()
	shaper, err := buildShaper()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../../../docs/recipes/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]bool{"dhcp/leases.yaml": true, "radius/sessions.yaml": true, "wireguard/peers.yaml": true}
	policies := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\nclasses:") {
			continue
		}
		policies++
		out, err := exec.Command(shaper, "check", "--strict", file).CombinedOutput()
		name := strings.TrimPrefix(file, "../../../../docs/recipes/")
		if !explained[name] && err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if explained[name] && (strings.Count(string(out), "warning: ") != 1 ||
			!strings.Contains(string(out), "class others can drop IPv6 neighbor discovery")) {
			t.Errorf("%s: %s: want the warning that the page explains", name, out)
		}
	}
	if policies < 18 {
		t.Errorf("%d policies", policies)
	}
}

// TestLiveRecipeServices limits the services of a slice. Plain cgroups stand in for those that systemd makes.
func TestLiveRecipeServices(t *testing.T) {
	skipInVM(t)
	r := newRecipe(t, "services", "eth0")
	c := newCgroup(t)
	c.add("other.service")
	r.edit("slices.csv", "/bulk.slice", c.path+"/bulk.slice")
	r.fix("services.yaml", "rate: 10mbit, burst: 128KiB", 600)
	r.serve("eth0 egress")
	c.add("bulk.slice") // the slice begins after shaper
	service := c.add("bulk.slice/backup.service")
	eventually(t, func() error {
		if e := r.effectStatus(); len(e.Problems)+len(e.Notes) > 0 || e.Effective == nil || !*e.Effective {
			return fmt.Errorf("got %+v", e)
		}
		return nil
	})
	_, at := r.addresses(placement{"tcx", "egress"}, false)
	in := listenUDP(t, r.far, at)
	of := func(cgroup string) func() { return func() { c.run(r.near, cgroup, sends(5, at)) } }
	r.wantPassed("backup", in, 3, of(service))
	r.wantPassed("other", in, 5, of(filepath.Join(c.path, "other.service")))
	// The service is started again: its cgroup is another one, below the same slice.
	if err := os.Remove(filepath.Join(c.root, service)); err != nil {
		t.Fatal(err)
	}
	c.add("bulk.slice/backup.service")
	r.wantPassed("backup, started again", in, 0, of(service))
	r.wantExit(0, "set", "eth0", "customer", "bulk", "plan=fast")
	r.wantPassed("backup with plan fast", in, 5, of(service))
	r.run.stopBySIGTERM()
}

// TestLiveRecipeServicesUnits checks the units of the recipe with systemd's own check.
func TestLiveRecipeServicesUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze to verify the unit: apt-get install systemd")
	}
	t.Parallel()
	dir, files := t.TempDir(), "../../../../docs/recipes/services/"
	for from, to := range map[string]string{
		"bulk.slice": "bulk.slice",
		"slice.conf": "backup.service.d/slice.conf",
	} {
		text, err := os.ReadFile(files + from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, to)), 0o755); err != nil {
			t.Fatal(err)
		}
		rewriteFile(t, filepath.Join(dir, to), string(text))
	}
	rewriteFile(t, filepath.Join(dir, "backup.service"), "[Service]\nExecStart=/bin/true\n")
	cmd := exec.Command("systemd-analyze", "verify", "--man=no", filepath.Join(dir, "backup.service"),
		filepath.Join(dir, "bulk.slice"))
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), dir) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestLiveRecipeContainers limits containers, which are namespaces behind veth pairs, and gives one of them
// another plan. Both directions of each have buckets of their own.
func TestLiveRecipeContainers(t *testing.T) {
	skipInVM(t)
	r := newRecipe(t, "containers", "eth0")
	r.fix("containers.yaml", "rate: 20mbit, burst: 256KiB", 600)
	r.edit("containers.yaml", "rate: 200mbit, burst: 2MiB", "rate: 1gbit, burst: 100MB")
	first, second := nettest.New(t), nettest.New(t)
	r.near.VethNamed("veth1", first, "eth0")
	r.serve("veth1 egress", "veth1 ingress")
	r.near.VethNamed("vethb29c", second, "eth0") // a runtime starts another container
	r.await("veth1 egress", "veth1 ingress", "vethb29c egress", "vethb29c ingress")
	process := exec.Command("sleep", "1000")
	second.Start(process)
	pid := fmt.Sprint(process.Process.Pid)

	counts := func(name string) (out [2]packetCount) {
		t.Helper()
		for i, direction := range []string{"egress", "ingress"} {
			list := r.customers(name, "--direction", direction)
			out[i] = list["container"].packetCount
			out[i].Packets -= list["container"].Dropped.Packets
			out[i].Bytes -= list["container"].Dropped.Bytes
		}
		return out
	}
	want := func(name string, down, up int64) {
		t.Helper()
		eventually(t, func() error {
			want := [2]packetCount{sentPackets(down), sentPackets(up)}
			if got := counts(name); got != want {
				return fmt.Errorf("%s: passed %+v: want %+v", name, got, want)
			}
			return nil
		})
	}
	send := func(n int, name string, inside *nettest.Namespace) {
		t.Helper()
		var down, up [][]byte
		for range n {
			down = append(down, packetBetween("203.0.113.1", "10.0.0.2"))
			up = append(up, packetBetween("10.0.0.2", "203.0.113.1"))
		}
		r.near.Inject(name, down...)
		inside.Inject("eth0", up...)
	}
	send(8, "veth1", first)
	send(8, "vethb29c", second)
	want("veth1", 6, 6)
	want("vethb29c", 6, 6)
	r.must("/etc/shaper/container-plan", pid, "large")
	send(8, "veth1", first)
	send(8, "vethb29c", second)
	want("veth1", 6, 6)
	want("vethb29c", 14, 14)
	for _, args := range [][]string{{pid, `x", "off": true, "y": "`}, {pid, "none"}, {"0x", "large"}} {
		out, err := r.in(r.near, append([]string{"/etc/shaper/container-plan"}, args...)...)
		if err == nil {
			t.Errorf("%q succeeded: %s", args, out)
		}
	}
	send(8, "vethb29c", second)
	want("vethb29c", 22, 22)
	r.near.Delete("vethb29c")
	r.await("veth1 egress", "veth1 ingress")
	r.run.stopBySIGTERM()
}
