package filelock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestHold checks that the time of a held file changes, and that closing the file ends that.
func TestHold(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	Hold(file)
	first := state(t, path)
	for end := time.Now().Add(time.Minute); state(t, path).ModTime().Equal(first.ModTime()); {
		if time.Now().After(end) {
			t.Fatalf("the time is still %v", first.ModTime())
		}
		time.Sleep(time.Millisecond)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := setTime(file); err == nil {
		t.Errorf("a closed file: got no error")
	}
}

// TestWait lets time pass for a waiter while a lock has one holder, slow ones, and stopped ones.
func TestWait(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "lock"), filepath.Join(dir, "other")
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	create := func(path string, set time.Time) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, set, set)); err != nil {
			t.Fatal(err)
		}
	}
	create(path, begin)
	create(other, begin)
	var wait Wait
	for _, step := range []struct {
		at   int // seconds after begin
		do   func()
		over bool
	}{
		{at: 0},
		{at: 10},
		{at: 11, over: true},
		{at: 12, do: func() { create(path, begin.Add(12*time.Second)) }}, // it runs
		{at: 22},
		{at: 23, do: func() { _ = os.Rename(other, path) }}, // the next holder
		{at: 33},
		{at: 34, over: true},
	} {
		if step.do != nil {
			step.do()
		}
		now := begin.Add(time.Duration(step.at) * time.Second)
		if over := wait.IsOver(state(t, path), now, 10*time.Second); over != step.over {
			t.Errorf("after %d s: over is %t, want %t", step.at, over, step.over)
		}
	}
}

func state(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
