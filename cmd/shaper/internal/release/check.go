package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// passedFile names the commit for which .ci/run has passed. .ci/run writes it.
const passedFile = "bin/passed"

// check reports why the commit cannot become the version. If test is true, it runs .ci/run unless that has
// passed for this commit.
func (s *source) check(test bool) error {
	var errs []error
	if s.unreleased {
		return errors.New("no version: make release VERSION=x.y.z")
	}
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(s.version) {
		return fmt.Errorf("version %q: want three numbers, such as 1.2.3", s.version)
	}
	if _, err := s.notes(); err != nil {
		errs = append(errs, err)
	}
	if latest := dated.FindStringSubmatch(s.changelog); latest[1] != s.version {
		errs = append(errs, fmt.Errorf("the latest version of CHANGELOG.md is %s, not %s", latest[1], s.version))
	}
	if text, err := os.ReadFile(filepath.Join(s.root, "cmd/shaper/version.go")); err != nil {
		errs = append(errs, err)
	} else if !strings.Contains(string(text), fmt.Sprintf("const release = \"v%s\"\n", s.version)) {
		errs = append(errs, fmt.Errorf("cmd/shaper/version.go: the version of the command is not v%s", s.version))
	}
	changed, err := s.git("status", "--porcelain")
	if err != nil {
		errs = append(errs, fmt.Errorf("git status: %w: a release is made from a clone", err))
	}
	if changed != "" {
		errs = append(errs, fmt.Errorf("files differ from the commit:\n%s", changed))
	}
	tagged, err := s.git("tag", "--list", "v"+s.version)
	if err == nil && tagged != "" {
		errs = append(errs, fmt.Errorf("the tag %s is there already", tagged))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.checkPassed(test)
}

// ownBuild checks that a binary was built from the commit.
func (s *source) ownBuild(info *buildinfo.BuildInfo) error {
	set := map[string]string{}
	for _, setting := range info.Settings {
		set[setting.Key] = setting.Value
	}
	if set["vcs.revision"] != s.commit || set["vcs.modified"] != "false" {
		return fmt.Errorf("built from commit %q, modified %q, not from %s: make binaries",
			set["vcs.revision"], set["vcs.modified"], s.commit)
	}
	return nil
}

// checkPassed checks that .ci/run has passed for the commit.
func (s *source) checkPassed(test bool) error {
	passed := func() bool {
		text, err := os.ReadFile(filepath.Join(s.root, passedFile))
		return err == nil && strings.TrimSpace(string(text)) == s.commit
	}
	if passed() {
		return nil
	}
	if !test {
		return fmt.Errorf(".ci/run has not passed for commit %s: run it, or make release VERSION=%s CHECK=1",
			s.commit, s.version)
	}
	command := exec.Command(".ci/run")
	command.Dir, command.Stdout, command.Stderr = s.root, os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf(".ci/run: %w", err)
	}
	if !passed() {
		return errors.New(".ci/run passed, but for another commit")
	}
	return nil
}
