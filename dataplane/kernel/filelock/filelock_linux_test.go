package filelock

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// TestHold checks that the time of a held file changes, and that closing the file ends that: then
// nothing refers to it any more.
func TestHold(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	free := make(chan bool, 1)
	runtime.AddCleanup(file, func(free chan bool) { free <- true }, free)
	Hold(file)
	first := state(t, path)
	within(t, "the time of the held file is the same", func() bool {
		return !state(t, path).ModTime().Equal(first.ModTime())
	})
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	file = nil
	within(t, "something refers to the closed file", func() bool {
		runtime.GC()
		return len(free) > 0
	})
}

// within waits until a condition is true.
func within(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestWait lets time pass for a waiter while a lock has holders that are slow, stopped and replaced.
func TestWait(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "lock"), filepath.Join(dir, "other")
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	set := func(path string, second int) {
		t.Helper()
		at := begin.Add(time.Duration(second) * time.Second)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	const stopped, slow = ": is it stopped?", ": it still changes something"
	for name, steps := range map[string][]struct {
		at   int  // seconds after begin
		set  bool // the holder sets the time
		next bool // the file of the next holder replaces it
		want string
	}{
		"stopped": {{at: 0}, {at: 10}, {at: 11, want: "for 11s" + stopped}},
		"slow": {
			{at: 0}, {at: 9, set: true}, {at: 19}, {at: 19, set: true}, {at: 29}, {at: 30, want: "for 30s" + stopped},
		},
		"too slow": {
			{at: 0},
			{at: 10, set: true},
			{at: 20, set: true},
			{at: 30, set: true},
			{at: 40, set: true},
			{at: 50, set: true},
			{at: 60, set: true},
			{at: 61, set: true, want: "for 1m1s" + slow},
		},
		"two": {
			{at: 0}, {at: 10, next: true}, {at: 20}, {at: 21, want: "for 11s" + stopped},
		},
	} {
		set(path, -1)
		set(other, -1)
		var wait Wait
		for _, step := range steps {
			switch {
			case step.set:
				set(path, step.at)
			case step.next:
				if err := os.Rename(other, path); err != nil {
					t.Fatal(err)
				}
			}
			now := begin.Add(time.Duration(step.at) * time.Second)
			if got := text(wait.Busy(state(t, path), now, Patience)); got != step.want {
				t.Errorf("%s, after %d s: got error %q, want %q", name, step.at, got, step.want)
			}
		}
	}
	var wait Wait
	for at, want := range []string{"", "", "for 1.001s"} {
		now := begin.Add(time.Duration(at) * 1001 * time.Millisecond / 2)
		if got := text(wait.Busy(state(t, path), now, time.Second)); got != want {
			t.Errorf("a short patience: got error %q, want %q", got, want)
		}
	}
}

// text returns the text of an error, "" if there is none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func state(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
