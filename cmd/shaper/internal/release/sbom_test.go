package main

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"runtime/debug"
	"strings"
	"testing"
)

// TestSBOM checks that the list has each module of a binary with the version and license of THIRD_PARTY, and
// that a module without a license is an error.
func TestSBOM(t *testing.T) {
	t.Parallel()
	thirdParty, err := os.ReadFile("../../../../THIRD_PARTY")
	if err != nil {
		t.Fatal(err)
	}
	info := &buildinfo.BuildInfo{GoVersion: "go1.26.8"}
	list, _, _ := strings.Cut(string(thirdParty), "\n====")
	for line := range strings.Lines(list) {
		if path, version, ok := strings.Cut(strings.TrimSpace(line), " v"); ok {
			info.Deps = append(info.Deps, &debug.Module{Path: path, Version: "v" + version})
		}
	}
	s := fixture(t, "1.2.3")
	text, err := s.sbom(info, string(thirdParty), "amd64")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		SPDXVersion   string
		Packages      []spdxPackage
		Relationships []spdxRelation
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	licenseOf := map[string]string{}
	for _, p := range got.Packages {
		if licenseOf[p.Name] != "" {
			t.Errorf("%s twice", p.Name)
		}
		licenseOf[p.Name] = p.Concluded
	}
	for name, want := range map[string]string{ // from the modules' own repositories
		"shaper": "Apache-2.0", "stdlib": "BSD-3-Clause", "github.com/cilium/ebpf": "MIT", "uPlot": "MIT",
		"github.com/spf13/cobra": "Apache-2.0", "go.yaml.in/yaml/v3": "Apache-2.0 AND MIT",
		"github.com/redis/go-redis/v9": "BSD-2-Clause", "github.com/google/gopacket": "BSD-3-Clause",
	} {
		if licenseOf[name] != want {
			t.Errorf("%s: license %q, want %q", name, licenseOf[name], want)
		}
	}
	if want := len(info.Deps) + 3; len(got.Packages) != want || len(got.Relationships) != want {
		t.Errorf("%d packages, %d relations, want %d", len(got.Packages), len(got.Relationships), want)
	}
	info.Deps = append(info.Deps, &debug.Module{Path: "example.com/new", Version: "v1.0.0"})
	if _, err := s.sbom(info, string(thirdParty), "amd64"); err == nil ||
		!strings.Contains(err.Error(), "no license of example.com/new v1.0.0") {
		t.Errorf("a module without a license: %v", err)
	}
}
