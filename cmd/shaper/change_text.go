package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// parseChange parses a change, such as customer 4711 plan=biz-200 for=1h.
func parseChange(words []string, now time.Time, span time.Duration) (c changes.Change, err error) {
	if len(words) < 3 {
		return c, errors.New("want customer, link or queue, a name, and a change such as rate=50mbit")
	}
	c.Kind, c.Name = changes.TargetKind(words[0]), words[1]
	seen := map[string]bool{}
	for _, word := range policyfile.JoinUnits(words[2:]) {
		name, value, assigns := strings.Cut(word, "=")
		key := name
		if word == "off" || word == "on" {
			key = "on or off"
		}
		if seen[key] {
			return c, fmt.Errorf("%.80q: %s is given twice", word, key)
		}
		seen[key] = true
		switch {
		case word == "off" || word == "on":
			off := word == "off"
			c.Off = &off
		case word == "reset":
			c.Reset = true
		case !assigns || value == "":
			return c, fmt.Errorf("%.80q: want plan=NAME, a parameter such as rate=50mbit, off, on or reset",
				word)
		case name == "plan":
			c.Plan = value
		case name == "for":
			if span, err = policyfile.ParseDuration(value); err != nil {
				return c, err
			}
			if span <= 0 {
				return c, fmt.Errorf("for=%s: it must be above zero", value)
			}
		default:
			if c.Parameters == nil {
				c.Parameters = map[string]string{}
			}
			c.Parameters[name] = value
		}
	}
	if span > 0 {
		c.Until = now.Add(span).Round(0)
	}
	return c, c.Check()
}

const (
	maxChangesSize = 64 << 20 // size of a file of changes, bytes
	maxLineErrors  = 20       // errors in a file of changes that are reported
)

// readChanges reads a file of changes, one a line.
func readChanges(path string, now time.Time, span time.Duration) ([]changes.Change, error) {
	out := []changes.Change{} // not nil, which lists the changes in force
	err := eachLine(path, func(words []string) error {
		c, err := parseChange(words, now, span)
		if err == nil && len(out) == changes.MaxList {
			return cli.Usagef("--file %s: more than %d changes: split it", say.Printable(path), changes.MaxList)
		}
		out = append(out, c)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// eachLine calls f for each line of a file of changes, as words. Empty lines and lines that begin with # are
// skipped, and so is a byte order mark. The error joins those of lines; a usage error ends the reading.
func eachLine(path string, f func(words []string) error) error {
	in := os.Stdin
	if path != "-" {
		var err error
		if in, err = os.Open(path); err != nil {
			return &cli.UsageError{Err: cli.PlainPathError("file of changes", err)}
		}
		defer in.Close()
	}
	text, err := io.ReadAll(io.LimitReader(in, maxChangesSize+1))
	if err != nil {
		return err
	}
	if len(text) > maxChangesSize {
		return cli.Usagef("%s: larger than %d MiB, the maximum of a file of changes", say.Printable(path),
			maxChangesSize>>20)
	}
	var errs []error
	n := 0
	for line := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
		n++
		words, err := splitWords(line)
		if err == nil && (len(words) == 0 || strings.HasPrefix(words[0], "#")) {
			continue
		}
		if err == nil {
			err = f(words)
		}
		if cli.IsUsage(err) {
			return err
		}
		if err != nil {
			if errs = append(errs,
				fmt.Errorf("%s:%d: %w", say.Printable(path), n, err)); len(errs) == maxLineErrors {
				break
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return &cli.UsageError{Err: err}
	}
	return nil
}

// splitWords splits a line at blanks. A word may be quoted, such as "a b".
func splitWords(line string) (words []string, err error) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		if line[0] == '"' {
			quoted, err := strconv.QuotedPrefix(line)
			if err != nil {
				return nil, errors.New("a quote is missing")
			}
			word, _ := strconv.Unquote(quoted)
			words, line = append(words, word), line[len(quoted):]
			continue
		}
		end := strings.IndexAny(line, " \t")
		if end < 0 {
			end = len(line)
		}
		words, line = append(words, line[:end]), line[end:]
	}
	return words, nil
}
