package bpf

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGenerated compiles the programs again, in a copy, and compares the result with the
// objects and the Go files in the repository.
func TestGenerated(t *testing.T) {
	for _, tool := range []string{"clang-14", "llvm-strip-14"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("compiling the eBPF programs needs clang: apt-get install clang-14 llvm-14 libbpf-dev")
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "bpf"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made, err := filepath.Glob("*_bpfel.*")
	if err != nil || len(made) != 8 {
		t.Fatalf("%q: want four objects with their Go: %v", made, err)
	}
	for _, name := range made {
		if err := os.Remove(filepath.Join(dir, "bpf", name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "generate", "./bpf")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go generate: %v: %s", err, out)
	}
	for _, name := range made {
		want, err := os.ReadFile(filepath.Join(dir, "bpf", name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the C makes: make generate", name)
		}
	}
}
