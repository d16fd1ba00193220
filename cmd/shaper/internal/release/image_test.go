package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// untar returns the files of a tar archive.
func untar(t *testing.T, r io.Reader) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	files, headers := map[string][]byte{}, map[string]*tar.Header{}
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return files, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name], headers[header.Name] = text, header
	}
}

// index, manifest and imageConfig are the parts of an image's documents that runtimes read.
type (
	index    struct{ Manifests []descriptor }
	manifest struct {
		Config descriptor
		Layers []descriptor
	}
	imageConfig struct {
		Architecture, OS string
		Config           struct {
			Entrypoint []string
			Labels     map[string]string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
)

// TestImage reads an image as a runtime does, and checks each digest and size.
func TestImage(t *testing.T) {
	t.Parallel()
	s := fixture(t, "1.2.3")
	path, err := s.writeImage()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files, _ := untar(t, f)
	if string(files["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout: %s", files["oci-layout"])
	}
	read := func(text []byte, to any) {
		t.Helper()
		if err := json.Unmarshal(text, to); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	blobs := 0
	blob := func(d descriptor) []byte {
		t.Helper()
		algorithm, sum, _ := strings.Cut(d.Digest, ":")
		text, ok := files["blobs/"+algorithm+"/"+sum]
		if !ok || len(text) != d.Size || sum != fmt.Sprintf("%x", sha256.Sum256(text)) {
			t.Fatalf("blob %s: %d bytes, want %d, or another digest", d.Digest, len(text), d.Size)
		}
		blobs++
		return text
	}
	var top, platforms index
	read(files["index.json"], &top)
	if len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2.3" {
		t.Fatalf("index.json: %s", files["index.json"])
	}
	read(blob(top.Manifests[0]), &platforms)
	for _, d := range platforms.Manifests {
		var m manifest
		var c imageConfig
		read(blob(d), &m)
		read(blob(m.Config), &c)
		if c.Architecture != d.Platform.Architecture || c.OS != "linux" || len(m.Layers) != 1 {
			t.Errorf("config %+v of platform %+v", c, d.Platform)
		}
		if fmt.Sprint(c.Config.Entrypoint) != "[/usr/bin/shaper]" ||
			c.Config.Labels["org.opencontainers.image.version"] != "1.2.3" {
			t.Errorf("config %+v", c.Config)
		}
		gz, err := gzip.NewReader(bytes.NewReader(blob(m.Layers[0])))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(gz)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("sha256:%x", sha256.Sum256(layer)); fmt.Sprint(c.RootFS.DiffIDs) != "["+want+"]" {
			t.Errorf("diff_ids %v, want %s", c.RootFS.DiffIDs, want)
		}
		inside, headers := untar(t, bytes.NewReader(layer))
		binary := headers["usr/bin/shaper"]
		if binary == nil || binary.Mode != 0o755 || binary.Uid != 0 ||
			!strings.Contains(string(inside["usr/bin/shaper"]), c.Architecture) {
			t.Errorf("%s: binary %+v: %s", c.Architecture, binary, inside["usr/bin/shaper"])
		}
	}
	if len(platforms.Manifests) != 2 || blobs != 7 {
		t.Errorf("%d platforms, %d blobs", len(platforms.Manifests), blobs)
	}
}

// TestImageRuns copies an image of the built command with skopeo, unpacks it with umoci, and runs it with
// crun or runc. The command attaches to the loopback interface of a network namespace of its own.
func TestImageRuns(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	run := ""
	for _, command := range []string{"runc", "crun", "umoci", "skopeo"} {
		if _, err := exec.LookPath(command); err == nil && run == "" {
			run = command
		} else if err != nil && command != "runc" && command != "crun" {
			t.Skipf("needs %s: apt-get install skopeo umoci crun", command)
		}
	}
	if run != "crun" && run != "runc" {
		t.Skip("needs crun or runc: apt-get install crun")
	}
	s := fixture(t, "1.2.3")
	s.architectures = []string{runtime.GOARCH}
	if err := os.Remove(s.binary(runtime.GOARCH)); err != nil { // go build replaces no script
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", s.binary(runtime.GOARCH), "./cmd/shaper")
	build.Dir = "../../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path, err := s.writeImage()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	output(t, "skopeo", "--insecure-policy", "copy", "oci-archive:"+path, "oci:"+dir+"/image:a")
	output(t, "umoci", "unpack", "--image", dir+"/image:a", dir+"/bundle")
	got := runBundle(t, run, dir+"/bundle", "version")
	if !strings.HasPrefix(got, "shaper v") {
		t.Errorf("version: %s", got)
	}
	got = runBundle(t, run, dir+"/bundle", "run", "lo", "--rate", "50mbit", "--for", "1s")
	if !strings.Contains(got, "lo egress: attached") || !strings.Contains(got, "lo egress: detached") {
		t.Errorf("run: %s", got)
	}
}

// runBundle runs the command of a bundle with the capabilities of docs/INSTALL.md, in new namespaces.
func runBundle(t *testing.T, run, bundle string, args ...string) string {
	t.Helper()
	path := filepath.Join(bundle, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	process := config["process"].(map[string]any)
	process["args"] = append([]string{"/usr/bin/shaper"}, args...)
	process["terminal"] = false
	capabilities := []string{"CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN"}
	process["capabilities"] = map[string]any{
		"bounding": capabilities, "effective": capabilities, "permitted": capabilities,
	}
	linux := config["linux"].(map[string]any)
	delete(linux, "seccomp")
	delete(linux, "resources")
	config["root"].(map[string]any)["readonly"] = false
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	// crun refuses to run beside a cgroup v2 that has controllers while others are in v1.
	command := exec.Command("unshare", "-m", "sh", "-ec",
		`umount /sys/fs/cgroup/unified 2>/dev/null || true; exec "$@"`, "sh",
		run, "--root", t.TempDir(), "run", "shaper-release-test-"+args[0])
	command.Dir = bundle
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", run, err, out)
	}
	return string(out)
}
