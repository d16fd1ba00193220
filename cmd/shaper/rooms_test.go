package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/a-seed-32e5a53f/shaper/"

// rooms lists the packages of the module. Each line names a package and its imports, and after "| tests:"
// the imports that only its tests have. Names are the last elements of paths. A package may import only
// packages of earlier lines; its tests may import any listed package. Indented lines continue the line
// before.
const rooms = `
# meters
meter: | tests: metertest
unsaid:
lease: | tests: world
world: lease
shared: meter unsaid lease | tests: storetest nettest
marker: meter
queue: meter

# planes
dataplane: meter marker queue | tests: compiled frametest
compiled: meter unsaid queue dataplane | tests: frametest policytest
pipeline: meter queue dataplane compiled | tests: marker frametest policytest
replay: dataplane pipeline | tests: meter queue
filter: dataplane
tap: meter dataplane compiled pipeline | tests: queue nettest
bpf:
remedy:
safedir:
filelock:
cause:
iface: dataplane cause | tests: nettest
qdisc: queue cause | tests: nettest
hook: cause qdisc
engine: meter unsaid dataplane compiled bpf remedy cause
record: meter dataplane compiled bpf cause iface qdisc hook
rundir: dataplane remedy safedir filelock cause iface qdisc hook | tests: nettest kerneltest
registry: meter dataplane compiled bpf cause iface hook engine record rundir
image: meter unsaid queue dataplane compiled bpf remedy cause iface qdisc hook engine record registry |
	tests: nettest policytest kerneltest
standby: dataplane safedir filelock iface rundir
kernel: meter dataplane compiled remedy safedir cause iface qdisc hook engine record rundir registry
	image standby | tests: queue nettest kerneltest
watch: kernel | tests: hook record nettest kerneltest
hostbudget: dataplane compiled pipeline bpf iface engine rundir registry | tests: nettest
	kerneltest
walk: meter dataplane compiled pipeline bpf remedy cause engine record image | tests: queue replay qdisc
	registry metertest nettest kerneltest

# language
strictjson:
pattern:
spelling:
schema:
output:
calendar:
quota:
changes: safedir filelock strictjson
customers: changes strictjson
policyfile: meter marker queue dataplane compiled pattern spelling calendar changes customers
say: meter unsaid shared queue dataplane compiled policyfile | tests: policytest
lint: meter queue dataplane compiled policyfile say
cli: dataplane compiled remedy output policyfile say lint
check: meter shared queue dataplane compiled calendar policyfile say lint cli | tests: policytest
diff: meter queue dataplane compiled replay calendar policyfile say | tests: policytest

# routers
form:
policywriter: meter unsaid queue dataplane pattern policyfile say | tests: policytest diff
routers: meter unsaid marker queue dataplane pattern policywriter form |
	tests: policyfile diff tc policytest rowstest
tc: meter unsaid queue dataplane pattern policyfile policywriter form routers |
	tests: compiled nettest rowstest
libreqos: meter queue dataplane routers | tests:

# captures
bins:
decisions: dataplane compiled
episodes: meter queue dataplane compiled
layer: dataplane
explain: meter marker queue dataplane compiled pipeline policyfile say decisions layer
annotate: meter dataplane compiled say
report: dataplane say | tests: chrome
summary: meter dataplane compiled replay policyfile say bins episodes report
compare: meter dataplane compiled pipeline replay policyfile say bins report
tcpmodel: meter queue
advise: meter unsaid queue dataplane compiled say report tcpmodel
simulate: meter lease world policyfile

# operation
connections:
budgets: meter lease shared compiled pipeline policyfile say | tests: dataplane kernel storetest
live: meter shared dataplane compiled tap standby kernel strictjson spelling calendar quota changes customers
	policyfile say cli budgets | tests: lease
control: dataplane compiled safedir kernel strictjson changes policyfile connections live
metrics: meter shared dataplane compiled kernel tap policyfile say cli connections live | tests: lease
	policytest
stats: meter dataplane compiled tap kernel hostbudget changes policyfile say cli budgets live control |
	tests: pipeline policytest
detach: dataplane standby kernel changes say cli live
process: dataplane compiled tap safedir standby kernel watch hostbudget output changes customers policyfile say
	cli budgets live control metrics stats detach | tests: pipeline nettest
reload: dataplane compiled kernel output changes policyfile say cli budgets live control stats process

remote: changes say cli live control stats detach process reload
serve: dataplane kernel watch policyfile say cli changes live control metrics stats detach process

# command
docs:
manual: | tests:
shaper: meter lease shared dataplane compiled pipeline replay filter hostbudget walk pattern spelling schema output
	changes policyfile say lint cli check diff policywriter routers tc libreqos decisions episodes explain annotate report
	summary compare advise simulate budgets live control stats process detach reload remote serve docs manual | tests: queue kernel tap
	storetest nettest oracle chrome

# support
metertest:
storetest:
nettest:
frametest: meter queue dataplane
policytest: meter queue dataplane compiled
rowstest: dataplane pipeline replay
kerneltest: meter dataplane compiled nettest
chaos: | tests: nettest
gencaps:
oracle:
livetest: | tests: meter queue dataplane tap compiled pipeline replay bpf kernel changes tcpmodel storetest
	nettest
chrome:
gate:
gotest:
release:
screenshot:
thirdparty:
`

// room is a package of the module, from rooms or from go list. Imports are names of rooms.
type room struct {
	floor, name    string
	imports, tests []string // tests without imports
}

// TestRooms compares rooms with the imports of all packages. meter and the packages below it may otherwise
// import only the standard library; Redis is for meter/shared and its test servers.
func TestRooms(t *testing.T) {
	t.Parallel()
	listed, found := parseRooms(t), goList(t)
	above := map[string]bool{}
	for _, r := range listed {
		p, ok := found[r.name]
		if !ok {
			t.Errorf("rooms lists %s, which is no package", r.name)
			continue
		}
		delete(found, r.name)
		difference(t, p.path, "imports", p.imports, r.imports)
		difference(t, "a test of "+p.path, "imports", p.tests, r.tests)
		for _, i := range r.imports {
			if !above[i] {
				t.Errorf("%s imports %s, which is not on an earlier line", r.name, i)
			}
		}
		above[r.name] = true
		for _, i := range p.others {
			redis := strings.HasPrefix(i, "github.com/redis/")
			switch {
			case redis && p.path != "meter/shared" && p.path != "meter/shared/storetest":
				t.Errorf("%s imports %s: only meter/shared knows Redis", p.path, i)
			case !redis && strings.HasPrefix(p.path+"/", "meter/"):
				t.Errorf("%s imports %s: meter is for embedding and has the standard library alone", p.path, i)
			}
		}
	}
	for _, p := range found {
		t.Errorf("rooms lacks %s", p.path)
	}
}

// TestMapOfRooms compares the tables of docs/ARCHITECTURE.md with rooms: floors, packages and their order.
func TestMapOfRooms(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Packages\n")
	section, _, _ = strings.Cut(section, "\n## ")
	found := goList(t)
	var want, got []string
	floor := ""
	for _, r := range parseRooms(t) {
		if r.floor != floor {
			floor = r.floor
			want = append(want, "### "+strings.ToUpper(floor[:1])+floor[1:])
		}
		if p := found[r.name]; p != nil {
			want = append(want, p.path)
		}
	}
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "### ") {
			got = append(got, strings.TrimSpace(line))
		} else if row, ok := strings.CutPrefix(line, "| `"); ok {
			path, _, _ := strings.Cut(row, "`")
			got = append(got, path)
		}
	}
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			t.Fatalf("from row %d on the map is %q, and rooms %q", i, got[min(i, len(got)):], want[min(i, len(want)):])
		}
	}
}

// difference reports imports that are not listed, and listed ones that are not used.
func difference(t *testing.T, who, does string, used, listed []string) {
	t.Helper()
	for _, i := range used {
		if !slices.Contains(listed, i) {
			t.Errorf("%s %s %s, which its line in rooms does not allow", who, does, i)
		}
	}
	for _, i := range listed {
		if !slices.Contains(used, i) {
			t.Errorf("rooms allows that %s %s %s, but it does not", who, does, i)
		}
	}
}

// parseRooms reads rooms.
func parseRooms(t *testing.T) []room {
	t.Helper()
	var list []room
	floor, seen := "", map[string]bool{}
	for line := range strings.SplitSeq(strings.ReplaceAll(rooms, "\n\t", " "), "\n") {
		if title, ok := strings.CutPrefix(line, "# "); ok {
			floor = title
		} else if line != "" {
			name, rest, _ := strings.Cut(line, ":")
			imports, tests, _ := strings.Cut(rest, "| tests:")
			if seen[name] {
				t.Errorf("rooms lists %s twice", name)
			}
			seen[name] = true
			list = append(list, room{floor, name, strings.Fields(imports), strings.Fields(tests)})
		}
	}
	return list
}

// listedPackage is a package as go list finds it, with the imports of Linux and other systems together.
type listedPackage struct {
	path           string   // below the module
	imports, tests []string // rooms; tests without imports and the package itself
	others         []string // imports of other modules
}

// goList finds the packages of the module by the last elements of their paths.
func goList(t *testing.T) map[string]*listedPackage {
	t.Helper()
	all := map[string]*listedPackage{}
	for _, system := range []string{"linux", "darwin"} {
		list := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
		list.Dir = "../.." // with the module's path instead, go list needs modules that no build downloads
		list.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64")
		out, err := list.Output()
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
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
				break
			} else if err != nil {
				t.Fatal(err)
			}
			local := strings.TrimPrefix(p.ImportPath, module)
			name := path.Base(local)
			l := all[name]
			if l == nil {
				l = &listedPackage{path: local}
				all[name] = l
			} else if l.path != local {
				t.Errorf("%s and %s have the same last element", l.path, local)
			}
			ours, others := split(p.Imports)
			l.imports = append(l.imports, ours...)
			l.others = append(l.others, others...)
			ours, _ = split(slices.Concat(p.TestImports, p.XTestImports))
			l.tests = append(l.tests, ours...)
		}
	}
	for name, l := range all {
		l.imports = unique(l.imports)
		l.others = unique(l.others)
		l.tests = slices.DeleteFunc(unique(l.tests), func(i string) bool {
			return i == name || slices.Contains(l.imports, i)
		})
	}
	return all
}

// split separates imports of the module, by their last elements, from those of other modules.
func split(imports []string) (ours, others []string) {
	for _, i := range imports {
		if strings.HasPrefix(i, module) {
			ours = append(ours, path.Base(i))
		} else if strings.Contains(i, ".") {
			others = append(others, i)
		}
	}
	return ours, others
}

func unique(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}
