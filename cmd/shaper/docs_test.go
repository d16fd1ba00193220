package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocs runs every command of README and docs in a copy of the checkout.
//
// In a block marked sh, each line is a command. In a block marked console, a line with $ is a command,
// and the lines after it must be its output; a line of ... stands for any lines. Targets of make must
// exist, but are not run. A shaper in the foreground gets --for 2s. A block marked shell changes the
// system and is not run. Commands run in their own network namespace with an interface eth0.
func TestDocs(t *testing.T) {
	needRoot(t)
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(bin, "shaper"),
		".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, page := range append(pages, filepath.Join(root, "README.md"),
		filepath.Join(root, "testdata/pcaps/README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		list := docCommands(string(text))
		if commands += len(list); len(list) == 0 {
			continue
		}
		name, _ := filepath.Rel(root, page)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, namespace := copyCheckout(t, root), newUplink(t, strings.ReplaceAll(name, "/", "-"))
			for _, c := range list {
				c.run(t, name, dir, bin, namespace)
			}
		})
	}
	if commands < 10 {
		t.Errorf("only %d commands found in the docs", commands)
	}
}

// copyCheckout copies the tree, so that commands write to the copy.
func copyCheckout(t *testing.T, root string) string {
	dir := t.TempDir()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		switch {
		case d.IsDir() && (d.Name() == ".git" || rel == "bin"):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(dir, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, rel), text, info.Mode())
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// newUplink creates a network namespace with an interface eth0.
func newUplink(t *testing.T, page string) string {
	name := fmt.Sprintf("shaper-docs-%d-%s", os.Getpid(), strings.TrimSuffix(page, ".md"))
	for _, args := range [][]string{
		{"netns", "add", name},
		{"-n", name, "link", "set", "lo", "up"},
		{"-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", "peer0"},
		{"-n", name, "link", "set", "eth0", "up"},
		{"-n", name, "link", "set", "peer0", "up"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
	return name
}

// docCommand is a command in a page.
type docCommand struct {
	text  string
	want  string
	check bool // compare its output
}

var docBlock = regexp.MustCompile("(?ms)^```(sh|console)\n(.*?)^```")

func docCommands(page string) []docCommand {
	var out []docCommand
	for _, block := range docBlock.FindAllStringSubmatch(page, -1) {
		body := strings.ReplaceAll(block[2], "\\\n", "\\\x00")
		for line := range strings.Lines(body) {
			line = strings.ReplaceAll(line, "\x00", "\n")
			command, prompt := strings.CutPrefix(line, "$ ")
			switch {
			case block[1] == "sh" && strings.TrimSpace(line) != "":
				out = append(out, docCommand{text: line})
			case prompt:
				out = append(out, docCommand{text: command, check: true})
			case len(out) > 0:
				out[len(out)-1].want += line
			}
		}
	}
	return out
}

// A command that matches foreground shapes until it is interrupted, unless detaches matches too.
var (
	foreground = regexp.MustCompile(`^shaper (run|tap) `)
	detaches   = regexp.MustCompile(` --(background|pin|for)\b`)
)

func (c docCommand) run(t *testing.T, page, dir, bin, namespace string) {
	t.Helper()
	text := strings.TrimSpace(c.text)
	if rest, ok := strings.CutPrefix(text, "make "); ok {
		text = "make -n " + rest
	}
	if foreground.MatchString(text) && !detaches.MatchString(text) {
		text += " --for 2s"
	}
	cmd := exec.Command("ip", "netns", "exec", namespace, "bash", "-c", text)
	cmd.Dir = dir
	// The build cache is that of the checkout, whatever folder its copy is in.
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "GOFLAGS=-trimpath")
	out, err := cmd.CombinedOutput()
	// A command that fails has its error in the output on the page.
	if err != nil && !(c.check && bytes.Contains(out, []byte("shaper: "))) {
		t.Errorf("%s: %s\n%v: %s", page, text, err, out)
		return
	}
	if c.check && !sameOutput(string(out), c.want) {
		t.Errorf("%s: %s\nprints\n%s\nthe page says\n%s", page, text, out, c.want)
	}
}

// anyTime matches a date with a time of day, which differs between runs.
var anyTime = regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?`)

// sameOutput compares output with a page, ignoring spaces at the ends of lines.
func sameOutput(got, want string) bool {
	got, want = anyTime.ReplaceAllString(got, "TIME"), anyTime.ReplaceAllString(want, "TIME")
	var pattern strings.Builder
	for line := range strings.Lines(strings.Trim(want, "\n")) {
		if line = strings.TrimRight(line, " \n"); line == "..." {
			pattern.WriteString(`(.*\n)*`)
			continue
		}
		pattern.WriteString(regexp.QuoteMeta(line) + ` *\n`)
	}
	return regexp.MustCompile(`^\n*` + pattern.String() + `\n*$`).MatchString(strings.TrimRight(got, " \n") +
		"\n")
}
