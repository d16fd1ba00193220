package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// command writes a program that behaves like a version of shaper, as far as the gate knows it: for
// each call it counts to steps. The gate measures programs that are scripts like others.
func command(t *testing.T, steps int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shaper")
	text := fmt.Sprintf("#!/bin/sh\ni=0\nwhile [ $i -lt %d ]; do i=$((i+1)); done\n", steps)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// accepting writes a file of accepted costs.
func accepting(t *testing.T, lines string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "accepted")
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBroken checks that the gate fails if replay needs three times the CPU time in all layouts, unless
// that was accepted, and that it measures three times before.
func TestBroken(t *testing.T) {
	base, here := command(t, 20_000), command(t, 60_000)
	run := func(base, here layouts, accepted string) (string, error) {
		o := options{
			base: base, here: here, name: "none", accepted: accepting(t, accepted), only: "IMIX with marks",
			pairs: 3, sample: 50 * time.Millisecond, packets: 10,
		}
		var out strings.Builder
		err := o.gate(t.TempDir(), &out)
		t.Log(out.String())
		return out.String(), err
	}
	out, err := run(layouts{base}, layouts{here}, "")
	if !errors.Is(err, errWorse) || strings.Count(out, "WORSE") != repetitions {
		t.Errorf("three times slower: %v", err)
	}
	if _, err := run(layouts{base}, layouts{here},
		"shaper replay, IMIX with marks: user CPU | 20 | none | a test\n"); err != nil {
		t.Errorf("accepted: %v", err)
	}
	if out, err := run(layouts{here}, layouts{base}, ""); err != nil || strings.Count(out, "->") != 1 {
		t.Errorf("three times faster: %v", err)
	}
	out, err = run(layouts{base, base, here}, layouts{here, here, base}, "")
	if err != nil || strings.Count(out, "->") != 3 {
		t.Errorf("slower in two layouts: %v", err)
	}
	_, err = run(layouts{base}, layouts{filepath.Join(t.TempDir(), "absent")}, "")
	if err == nil || errors.Is(err, errWorse) {
		t.Errorf("a version that does not run: %v", err)
	}
}

// TestRatio has the samples of pairs, and the ratio that counts.
func TestRatio(t *testing.T) {
	for _, tt := range []struct {
		base, here []float64
		want       float64
	}{
		{[]float64{10, 10, 10}, []float64{10, 10, 10}, 1},
		{[]float64{10, 10, 10}, []float64{11, 11, 11}, 1.1},
		{[]float64{10, 10, 10}, []float64{13, 10, 13}, 1},        // one sample shows that it is not slower
		{[]float64{8, 10, 10}, []float64{10, 10, 10}, 1},         // one lucky sample of the base
		{[]float64{10, 20, 10}, []float64{11, 22, 40}, 1.1},      // other load
		{[]float64{10, 12, 14, 16}, []float64{5, 6, 7, 8}, 0.5},  // twice as fast
		{[]float64{10, 10, 10, 10}, []float64{9, 11, 12, 9}, .9}, // noise
	} {
		if r := ratioOf(tt.base, tt.here); r.figure < tt.want-1e-9 || r.figure > tt.want+1e-9 {
			t.Errorf("%v, %v: %v, want %v", tt.base, tt.here, r.figure, tt.want)
		}
	}
}

// TestWithin has samples that are clearly within the limit, and samples that need more.
func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		base, here []float64
		limit      float64
		want       bool
	}{
		{[]float64{10, 10, 10}, []float64{10, 10, 10}, 1.05, true},
		{[]float64{10, 10}, []float64{9, 9}, 1.05, false}, // two pairs
		{[]float64{10, 10, 10}, []float64{10.19, 10.19, 10.19}, 1.05, true},
		{[]float64{10, 10, 10}, []float64{10.21, 10.21, 10.21}, 1.05, false},
		{[]float64{10, 10, 10}, []float64{10.6, 10.6, 10.6}, 1.05, false},
		{[]float64{10, 10, 10}, []float64{10.6, 10.6, 10.6}, 1.1, true}, // an accepted cost
	} {
		if got := within(tt.base, tt.here, tt.limit); got != tt.want {
			t.Errorf("%v, %v, limit %v: %t", tt.base, tt.here, tt.limit, got)
		}
	}
}

// TestAccepted checks the file of the repository, and errors.
func TestAccepted(t *testing.T) {
	if _, err := readAccepted("../../../../.ci/gate-accepted"); err != nil {
		t.Error(err)
	}
	for _, line := range []string{
		"binary | 1.1 | abc", "binary | 1.1 | abc |", "binary | 0.9 | abc | smaller", "binary | much | abc | larger", "speed | 1.1 | abc | slower",
	} {
		if _, err := readAccepted(accepting(t, "# costs\n\n"+line+"\n")); err == nil ||
			!strings.Contains(err.Error(), ":3: ") {
			t.Errorf("%s: %v", line, err)
		}
	}
	list, err := readAccepted(
		accepting(t, "binary | 1.1 | none | a\nbinary|1.5|none|b\nshaper version: CPU | 2 | none | c\n"))
	if factor := list.factor("binary", "none"); err != nil || factor < 1.649 || factor > 1.651 {
		t.Errorf("factor %v, %v", factor, err)
	}
}

// TestCaptures checks that captures are the same each time, so that figures can be repeated.
func TestCaptures(t *testing.T) {
	var first []byte
	for range 2 {
		dir := t.TempDir()
		if err := writeCaptures(dir, 1000); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, imixName))
		if err != nil || len(data) < 24+1000*(16+60) {
			t.Fatal(len(data), err)
		}
		if first != nil && string(data) != string(first) {
			t.Error("two captures differ")
		}
		first = data
	}
}
