package changes

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func add(t *testing.T, f *File, list ...Change) {
	t.Helper()
	if err := f.Add(list, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func read1(t *testing.T, path string) Book {
	t.Helper()
	b, _, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFile adds random changes and opens the file again from time to time.
func TestFile(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	path, now := filepath.Join(t.TempDir(), "changes"), time.Unix(1e9, 0).UTC()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		var list []Change
		for range 1 + r.IntN(4) {
			list = append(list, randomChange(r, now))
		}
		switch before := read1(t, path); r.IntN(4) {
		case 0:
			failed := errors.New("failed")
			if err := f.Add(list, func() error { return failed }); !errors.Is(err, failed) {
				t.Fatalf("got %v", err)
			}
			if after := read1(t, path); !reflect.DeepEqual(after, before) {
				t.Fatalf("a change that failed is kept: %v, before %v", after, before)
			}
		case 1:
			if f, err = Open(path); err != nil {
				t.Fatal(err)
			}
			fallthrough
		default:
			add(t, f, list...)
		}
		if after := read1(t, path); !reflect.DeepEqual(after, f.Book) {
			t.Fatalf("the file has %v, the book is %v", after, f.Book)
		}
		if r.IntN(20) == 0 {
			f.base = -maxGrowth // the next call writes the file anew
		}
	}
}

// TestCutFile cuts the file at each byte of its last line. Then that call is lost as a whole, and
// the next call works.
func TestCutFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	change := func(name, plan string) Change {
		return Change{Target: Target{Customer, name}, Terms: Terms{Plan: plan}}
	}
	add(t, f, change("a", "one"))
	first := read1(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	add(t, f, change("a", "two"), change("b", "two"))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	empty := int64(len(header) + len("00000000 null\n") + len(mark)) // size of a file without changes
	for size := range info.Size() {
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if damaged := errors.As(err, new(*DamageError)); damaged && len(f.Book) != 0 || !damaged &&
			(err != nil || size < int64(len(header))) {
			t.Fatalf("%d bytes: got %v, %v, want an error", size, f.Book, err)
		}
		if interrupted := len(f.Interrupted) > 0; size >= empty && interrupted != (len(f.Book) > 0) {
			t.Fatalf("%d bytes: got %v, interrupted %v", size, f.Book, f.Interrupted)
		}
	}
	interrupted := 0
	for size := info.Size(); size < int64(len(whole)); size++ {
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil || len(f.Interrupted) == 0 && !reflect.DeepEqual(f.Book, first) {
			t.Fatalf("%d bytes: got %v, %v", size, f.Book, err)
		}
		want := 2
		if len(f.Interrupted) > 0 { // the line is complete, but not its mark
			interrupted++
			want = 3
			if got := f.Interrupted; len(got) != 2 || got[0].Name != "a" || got[1].Name != "b" ||
				f.Book.Terms(got[0], time.Now()).Plan != "two" {
				t.Fatalf("%d bytes: interrupted %v, book %v", size, got, f.Book)
			}
		}
		add(t, f, change("c", "three"))
		b, left, err := Read(path)
		if err != nil || len(left) != 0 || len(b) != want ||
			b.Terms(Target{Customer, "c"}, time.Now()).Plan != "three" {
			t.Fatalf("%d bytes: after another call got %v, interrupted %v, %v", size, b, left, err)
		}
	}
	if interrupted != len(mark) {
		t.Errorf("%d files end with a line without its mark: want %d", interrupted, len(mark))
	}
}

// TestVersion1 reads a file of version 1, which has no marks, and adds to it.
func TestVersion1(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes")
	a, b := Change{Target: Target{Customer, "a"}, Terms: Terms{Plan: "one"}}, Change{
		Target: Target{Link, "l"}, Terms: Terms{Parameters: map[string]string{"rate": "1mbit"}},
	}
	text := []byte(header1)
	for _, list := range [][]Change{{a}, {b}} {
		line, err := encode(list)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, line...)
	}
	if err := os.WriteFile(path, append(text, "0000"...), 0o600); err != nil { // and a line that was cut off
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil || len(f.Book) != 2 || len(f.Interrupted) != 0 {
		t.Fatalf("got %v, interrupted %v, %v", f.Book, f.Interrupted, err)
	}
	add(t, f, Change{Target: a.Target, Reset: true})
	if book := read1(t, path); !reflect.DeepEqual(book, f.Book) || len(book) != 1 {
		t.Errorf("got %v", book)
	}
}

// TestUnkept makes changes while the file cannot be written. They are in force, and kept when it can.
func TestUnkept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	f, err := Open(filepath.Join(dir, "changes"))
	if err != nil {
		t.Fatal(err)
	}
	change := func(name string) []Change {
		return []Change{{Target: Target{Customer, name}, Terms: Terms{Plan: "p"}}}
	}
	done := 0
	do := func() error { done++; return nil }
	if err := f.Add(change("a"), do); !errors.As(err, new(*UnkeptError)) || done != 1 || len(f.Book) != 1 ||
		!f.Behind() {
		t.Fatalf("got %v, %d, %v, behind %v", err, done, f.Book, f.Behind())
	}
	refused := errors.New("refused")
	if err := f.Add(change("x"), func() error { return refused }); !errors.Is(err, refused) ||
		errors.As(err, new(*UnkeptError)) || len(f.Book) != 1 {
		t.Fatalf("got %v, %v", err, f.Book)
	}
	if err := f.AddUnkept(change("b"), do); err != nil || done != 2 || len(f.Book) != 2 {
		t.Fatalf("got %v, %d, %v", err, done, f.Book)
	}
	if err := f.Keep(); !errors.As(err, new(*UnkeptError)) {
		t.Fatalf("got %v", err)
	}
	if err := errors.Join(os.Mkdir(dir, 0o700), f.Keep()); err != nil || f.Behind() {
		t.Fatalf("got %v, behind %v", err, f.Behind())
	}
	if b := read1(t, f.Path); !reflect.DeepEqual(b, f.Book) {
		t.Errorf("got %v", b)
	}
	if err := f.AddUnkept(change("c"), do); err != nil || !f.Behind() {
		t.Fatal(err)
	}
	add(t, f, change("d")...) // writes both
	if b := read1(t, f.Path); len(b) != 4 {
		t.Errorf("got %v", b)
	}

	f.Required = true
	if err := errors.Join(os.RemoveAll(dir), f.Add(change("e"), do)); err == nil || done != 3 ||
		len(f.Book) != 4 {
		t.Errorf("got %v, %d, %v: want the change not to be made", err, done, f.Book)
	}
}

// TestUnmarked makes a change whose line cannot be marked any more. If the file can be written anew, the
// change is kept; if not, it is in force, and later kept.
func TestUnmarked(t *testing.T) {
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var free unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &free); err != nil {
		t.Fatal(err)
	}
	limit := func(size uint64) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: free.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer limit(free.Cur)
	for _, row := range []struct {
		name  string
		limit func(size uint64) uint64 // of files, from that of the file with the line
		kept  bool
	}{
		{"once", func(size uint64) uint64 { return size }, true},
		{"for long", func(uint64) uint64 { return 10 }, false},
	} {
		f, err := Open(filepath.Join(t.TempDir(), "changes"))
		if err != nil {
			t.Fatal(err)
		}
		list := []Change{{Target: Target{Customer, "a"}, Terms: Terms{Plan: "p"}}}
		add(t, f, list...)
		add(t, f, list...)
		err = f.Add(list, func() error {
			info, err := os.Stat(f.Path)
			if err == nil {
				limit(row.limit(uint64(info.Size())))
			}
			return err
		})
		limit(free.Cur)
		if errors.As(err, new(*UnkeptError)) == row.kept || row.kept && err != nil || f.Behind() == row.kept {
			t.Errorf("%s: got %v, behind %v", row.name, err, f.Behind())
		}
		if err := f.Keep(); err != nil {
			t.Error(err)
		}
		b, interrupted, err := Read(f.Path)
		if !reflect.DeepEqual(b, f.Book) || len(interrupted) > 0 || err != nil {
			t.Errorf("%s: got %v, interrupted %v, %v", row.name, b, interrupted, err)
		}
	}
}

// TestDamagedFile changes each byte of a file. The error names the file, and the book is empty.
func TestDamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		add(t, f, Change{Target: Target{Customer, name}, Terms: Terms{Plan: "p"}})
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(whole) - 1 { // without the last line feed the last call is lost
		text := append([]byte(nil), whole...)
		text[i] ^= 4
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if !errors.As(err, new(*DamageError)) || len(f.Book) != 0 {
			t.Fatalf("byte %d: got %v, %v", i, f.Book, err)
		}
	}
	f, _ = Open(path)
	add(t, f, Change{Target: Target{Customer, "d"}, Terms: Terms{Plan: "p"}})
	if b := read1(t, path); len(b) != 1 {
		t.Errorf("after the next call got %v", b)
	}
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Error(err)
	}
}

// TestUnreadableFile checks that a file which cannot be read is put aside, not replaced.
func TestUnreadableFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err == nil || !strings.Contains(err.Error(), "its changes are not in force") {
		t.Errorf("got %v", err)
	}
	add(t, f, Change{Target: Target{Customer, "a"}, Terms: Terms{Plan: "p"}})
	if b := read1(t, path); len(b) != 1 {
		t.Errorf("after a call got %v", b)
	}
	if info, err := os.Stat(path + ".damaged"); err != nil || !info.IsDir() {
		t.Errorf("the file was not put aside: %v", err)
	}
}

// TestMissingFile checks that a file that was removed is written again.
func TestMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Keep(); err != nil || len(read1(t, path)) != 0 {
		t.Fatal("an empty book needs no file")
	}
	add(t, f, Change{Target: Target{Customer, "a"}, Terms: Terms{Plan: "p"}})
	for _, again := range []func() error{f.Keep, func() error {
		return f.Add([]Change{{Target: Target{Customer, "b"}, Terms: Terms{Plan: "p"}}},
			func() error { return nil })
	}} {
		if err := errors.Join(os.Remove(path), again()); err != nil {
			t.Fatal(err)
		}
		if b := read1(t, path); !reflect.DeepEqual(b, f.Book) {
			t.Errorf("got %v, want %v", b, f.Book)
		}
	}
}

// TestLock checks that a second lock waits for the first.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes")
	l, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("got %v", err)
	}
	locked := make(chan error)
	go func() {
		again, err := Lock(path)
		if err == nil {
			err = again.Close()
		}
		locked <- err
	}()
	if err := errors.Join(l.Close(), <-locked); err != nil {
		t.Error(err)
	}
}

// TestLockShowsHolder checks that the holder of a lock shows that it runs.
func TestLockShowsHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "changes")
	l, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(lockName(path), past, past); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		info, err := os.Stat(lockName(path))
		if err != nil {
			t.Fatal(err)
		}
		if info.ModTime().After(past.Add(time.Minute)) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the holder does not set the time of its file")
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestLockReadOnly checks that a file on a file system that became read-only can be locked.
func TestLockReadOnly(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "changes")
	l, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	runtime.LockOSThread() // the thread ends with the test, and its mounts with it
	if err := errors.Join(
		unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(dir, dir, "", unix.MS_BIND, ""),
		unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // TempDir removes it
	l, err = TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// FuzzRead reads a file with a line of any list, with its checksum, and any bytes behind it. What is
// accepted is the same after it was written again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`[{"kind":"customer","name":"a","plan":"b","parameters":{"rate":"1mbit"},"until":"2030-01-01T00:00:00Z"},{"kind":"link","name":"l","reset":true}]`),
		[]byte("x"))
	f.Add([]byte(`[{"kind":"customer","name":"a","off":true,"by":1}]`), []byte(mark))
	f.Add([]byte(`[{"kind":"customer","name":"a","Off":true,"off":false}]`), []byte("\n"))
	f.Fuzz(func(t *testing.T, list, rest []byte) {
		line := fmt.Appendf([]byte(header), "%08x %s\n", crc32.ChecksumIEEE(list), list)
		file := &File{Book: Book{}, Path: "file"}
		if err := file.parse(append(line, rest...)); err != nil {
			if !errors.As(err, new(*DamageError)) {
				t.Fatalf("got %v", err)
			}
			return
		}
		again, err := encode(slices.Collect(file.Book.All()))
		if err != nil {
			return // a year above 9999
		}
		same := &File{Book: Book{}, Path: "file"}
		if err := same.parse(append([]byte(header), again...)); err != nil ||
			len(same.Book) != len(file.Book) {
			t.Fatalf("%v, written again %v, %v", file.Book, same.Book, err)
		}
	})
}
