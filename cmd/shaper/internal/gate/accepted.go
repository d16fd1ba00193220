package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// acceptedCost is a figure allowed to be worse by a factor, from a commit on.
type acceptedCost struct {
	figure string
	factor float64
	commit string
}

type acceptedCosts []acceptedCost

// readAccepted reads lines of FIGURE | FACTOR | COMMIT | REASON.
func readAccepted(path string) (list acceptedCosts, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		part := strings.Split(line, "|")
		for i := range part {
			part[i] = strings.TrimSpace(part[i])
		}
		if len(part) != 4 || part[3] == "" {
			return nil, fmt.Errorf("%s:%d: want FIGURE | FACTOR | COMMIT | REASON", path, n)
		}
		factor, err := strconv.ParseFloat(part[1], 64)
		if err != nil || factor < 1 {
			return nil, fmt.Errorf("%s:%d: factor %q: want a number from 1 on", path, n, part[1])
		}
		known := false
		for _, f := range figures("") {
			known = known || f.name == part[0]
		}
		if !known {
			return nil, fmt.Errorf("%s:%d: no figure is called %q", path, n, part[0])
		}
		list = append(list, acceptedCost{part[0], factor, part[2]})
	}
	return list, lines.Err()
}

// factor returns the product of the factors of a figure, without those of the base's commits.
func (a acceptedCosts) factor(name, base string) float64 {
	factor := 1.0
	for _, c := range a {
		if c.figure == name &&
			exec.Command("git", "merge-base", "--is-ancestor", c.commit, base).Run() != nil {
			factor *= c.factor
		}
	}
	return factor
}
