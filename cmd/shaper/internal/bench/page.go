package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"text/template"
	"time"
)

// group is a section of the page.
type group struct {
	name    string
	root    bool // the figures need root
	figures []figure
}

const tableHead = "| what | bar | aim | measured | ours | other | met |\n|---|---|---|---|---|---|---|\n"

//go:embed page.md
var pageText string

// page is docs/BENCHMARKS.md with its picture.
type page struct {
	Machine, Date, Commit string
	Load                  string // averages of 1, 5 and 15 minutes before the first figure
	Others                string // versions of the other programs
	Rounds                int

	tables  map[string]string // by the name of the group
	results []result
	growth  []chart
}

// measure measures all figures, and prints the rows.
func (p *page) measure(groups []group, w io.Writer) {
	p.tables = map[string]string{}
	for _, g := range groups {
		fmt.Fprintf(w, "\n%s\n\n%s", g.name, tableHead)
		var b strings.Builder
		for i := range g.figures {
			r := g.figures[i].measure(p.Rounds)
			if r.err != nil {
				r = g.figures[i].measure(p.Rounds)
			}
			p.results = append(p.results, r)
			fmt.Fprintln(io.MultiWriter(w, &b), r.row())
		}
		p.tables[g.name] = tableHead + strings.TrimSpace(b.String())
	}
}

// failed returns an error with the names of figures which could not be measured.
func (p *page) failed() error {
	var all []error
	for _, r := range p.results {
		if r.err != nil {
			all = append(all, fmt.Errorf("%s: %w", r.what, r.err))
		}
	}
	return errors.Join(all...)
}

// write writes BENCHMARKS.md and growth.svg to a directory.
func (p *page) write(dir string) error {
	t, err := template.New("page.md").Funcs(template.FuncMap{
		"table": func(group string) (string, error) {
			if t, ok := p.tables[group]; ok {
				return t, nil
			}
			return "", fmt.Errorf("there is no group %q", group)
		},
		"missed": p.missed,
		"growth": func() string { return chartTables(p.growth) },
	}).Parse(pageText)
	if err != nil {
		return err
	}
	var b strings.Builder
	if err := t.Execute(&b, p); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "BENCHMARKS.md"), []byte(b.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "growth.svg"), []byte(draw(p.growth)), 0o644),
	)
}

// missed returns a table of the figures below their bar, and of those below their aim for a known
// reason.
func (p *page) missed() string {
	var b strings.Builder
	b.WriteString("| what | goal | measured | reason |\n|---|---|---|---|\n")
	for _, r := range p.results {
		switch goal := r.met(); {
		case r.err != nil:
		case goal == "no":
			fmt.Fprintf(&b, "| %s | bar %s | %s | %s |\n", r.what, r.barText(), r.valueText(),
				reasonOf(r.what))
		case goal == "bar" && r.aim != noAim && reasonOf(r.what) != "":
			fmt.Fprintf(&b, "| %s | aim %s | %s | %s |\n", r.what, r.aimText(), r.valueText(),
				reasonOf(r.what))
		}
	}
	return strings.TrimSpace(b.String())
}

// describe sets the machine, its load, the other programs, the date and the commit.
func (p *page) describe() {
	load := strings.Fields(firstLine("/proc/loadavg"))
	p.Load = strings.Join(load[:min(3, len(load))], ", ")
	p.Others = versions()
	p.Machine = fmt.Sprintf("%s, %d cores, Linux %s, %s", cpu(), runtime.NumCPU(),
		firstLine("/proc/sys/kernel/osrelease"), runtime.Version())
	p.Date = time.Now().UTC().Format(time.DateOnly)
	p.Commit = "an unknown commit"
	if hash, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		p.Commit = "commit " + strings.TrimSpace(string(hash))
		if changes, err := exec.Command("git", "status", "--porcelain",
			"--untracked-files=no").Output(); err == nil &&
			len(changes) > 0 {
			p.Commit += " with changes"
		}
	}
}

// versions returns the versions of the other programs installed.
func versions() string {
	var all []string
	for _, o := range []struct{ name, command string }{
		{"DPDK", "pkg-config --modversion libdpdk"},
		{"tcpdump", "tcpdump --version"},
		{"iperf3", "iperf3 --version"},
		{"Redis", "redis-server --version"},
		{"Valkey", "valkey-server --version"},
	} {
		arg := strings.Fields(o.command)
		text, err := exec.Command(arg[0], arg[1:]...).CombinedOutput()
		if version := versionNumber.FindString(string(text)); err == nil && version != "" {
			all = append(all, o.name+" "+version)
		}
	}
	return strings.Join(all, ", ")
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)+`)

func cpu() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func firstLine(path string) string {
	text, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}
