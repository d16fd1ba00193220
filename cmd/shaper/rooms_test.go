package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/a-seed-32e5a53f/shaper/"

// rooms has the packages of this module that each room may import, besides those in its own
// folders. All other imports are errors.
var rooms = []struct {
	room string
	may  []string
}{
	{"cmd/shaper/internal/oracle", nil}, // the model shares no code
	{"cmd/shaper/internal/report", []string{"cmd/shaper/internal/say", "dataplane"}},
	{"cmd/shaper/internal/say", []string{"cmd/shaper/internal/policyfile", "dataplane", "marker", "meter", "meter/shared", "queue"}},
	{"cmd/shaper/internal/policyfile", []string{"dataplane", "marker", "meter", "queue"}},
	{"cmd/shaper", []string{"cmd/shaper", "dataplane", "dataplane/kernel", "dataplane/replay", "dataplane/tap", "marker", "meter", "meter/shared", "meter/shared/lease", "meter/shared/lease/world", "queue"}},
	{"dataplane/replay", []string{"dataplane"}},
	{"dataplane/kernel", []string{"bpf", "dataplane", "meter", "queue"}},
	{"dataplane/tap", []string{"dataplane", "meter"}},
	{"dataplane", []string{"marker", "meter", "queue"}},
	{"queue", []string{"meter"}},
	{"marker", []string{"meter"}},
	{"meter/shared", []string{"meter"}},
	{"meter", nil},
	{"bpf", nil},
}

// TestRooms checks the direction of imports, that meter imports only the standard library, and
// that only meter/shared imports Redis.
func TestRooms(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		path := strings.TrimPrefix(p.ImportPath, module)
		room, may := roomOf(t, path)
		for _, i := range p.Imports {
			if local, ours := strings.CutPrefix(i, module); ours {
				if !allowed(local, room, may) {
					t.Errorf("%s imports %s", path, local)
				}
			} else if room == "meter" && strings.Contains(i, ".") {
				t.Errorf("%s imports %s: meter is for embedding and has the standard library alone", path, i)
			} else if strings.HasPrefix(i, "github.com/redis/") && room != "meter/shared" && path != "cmd/shaper/internal/bench" {
				t.Errorf("%s imports %s: only meter/shared knows Redis", path, i)
			}
		}
	}
}

func roomOf(t *testing.T, path string) (string, []string) {
	for _, r := range rooms {
		if path == r.room || strings.HasPrefix(path, r.room+"/") {
			return r.room, r.may
		}
	}
	t.Errorf("%s belongs to no room", path)
	return path, nil
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
