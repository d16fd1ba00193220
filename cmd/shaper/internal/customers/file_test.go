package customers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
)

func opened(t *testing.T, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func add(name string) *Record {
	return &Record{
		Name: name, Cells: map[string]string{"plan": "p", "address": "192.0.2.1"}, Idle: time.Minute,
		Since: time.Unix(7, 0), Author: changes.Author{User: "root"},
	}
}

func text(t *testing.T, b Book) string {
	t.Helper()
	out, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func nothing() error { return nil }

// TestFileModel makes changes at random, some of which fail, and opens the file again and again.
func TestFileModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "file")
	f, model := opened(t, path), Book{}
	versions := map[string]bool{}
	for range 500 {
		var list [][]*Record
		for range 1 + r.IntN(3) {
			var records []*Record
			for range 1 + r.IntN(3) {
				one := add(fmt.Sprint(r.IntN(20)))
				switch r.IntN(4) {
				case 0:
					one = &Record{Name: one.Name, Reset: true}
				case 1:
					one = &Record{Name: one.Name, Removed: true}
				}
				records = append(records, one)
			}
			list = append(list, records)
		}
		refused := errors.New("refused")
		fails := r.IntN(4) == 0
		err := f.Add(list, func() error {
			if fails {
				return refused
			}
			return nil
		})
		if fails != errors.Is(err, refused) || err != nil && !fails {
			t.Fatal(err)
		}
		if !fails {
			for _, records := range list {
				for _, one := range records {
					model.Apply(one)
				}
			}
			if versions[f.Version()] {
				t.Fatalf("version %s again", f.Version())
			}
			versions[f.Version()] = true
		}
		if r.IntN(20) == 0 {
			if err := f.Rewrite(); err != nil {
				t.Fatal(err)
			}
		}
		if r.IntN(10) == 0 {
			version := f.Version()
			if f = opened(t, path); f.Version() != version {
				t.Fatalf("version %s, want %s", f.Version(), version)
			}
		}
		if r.IntN(50) == 0 && os.Remove(path) == nil { // as with the interface
			if err := f.Keep(); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := text(t, f.Book), text(t, model); a != b {
			t.Fatalf("got  %s\nwant %s", a, b)
		}
	}
}

// TestTornFile cuts a file off at each byte. What is complete stays, and the next change follows it.
func TestTornFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f := opened(t, path)
	var ends []int // length of the file after each change
	for i := range 4 {
		if err := f.Add([][]*Record{{add(fmt.Sprint(i))}}, nothing); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, int(f.size))
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.IndexByte(whole, '\n')
	for n := first + 1; n <= len(whole); n++ {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		want := 0
		for _, end := range ends {
			if end <= n {
				want++
			}
		}
		if err != nil || len(f.Book) != want {
			t.Fatalf("%d bytes: %d customers and %v, want %d", n, len(f.Book), err, want)
		}
		if err := f.Add([][]*Record{{add("next")}}, nothing); err != nil {
			t.Fatal(err)
		}
		if again := opened(t, path); len(again.Book) != want+1 {
			t.Fatalf("%d bytes: %d customers after the next change, want %d", n, len(again.Book), want+1)
		}
	}
}

// TestDamagedFile damages each byte of a line in the middle. Only its customer is lost, with an error, and a
// copy of the file is kept.
func TestDamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f := opened(t, path)
	for i := range 3 {
		if err := f.Add([][]*Record{{add(fmt.Sprint("name", i))}}, nothing); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	begin := len(lines[0]) + len(lines[1]) + len(lines[2])
	for at := begin; at < begin+len(lines[3])-1; at += 3 {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x20
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if !errors.As(err, new(*DamageError)) || len(f.Book) != 2 || !strings.Contains(err.Error(), "line 4") {
			t.Fatalf("byte %d: %d customers and %v", at, len(f.Book), err)
		}
		if err := f.Add([][]*Record{{add("next")}}, nothing); err != nil {
			t.Fatal(err)
		}
		if again := opened(t, path); len(again.Book) != 3 {
			t.Fatalf("byte %d: %d customers after the next change", at, len(again.Book))
		}
		if kept, err := os.ReadFile(path + ".damaged"); err != nil || !bytes.Equal(kept, damaged) {
			t.Fatalf("byte %d: the damaged file is not kept: %v", at, err)
		}
	}
}

// TestUnwritableFile checks that a change that cannot be kept is not made.
func TestUnwritableFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f := opened(t, path)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	called := false
	err := f.Add([][]*Record{{add("a")}}, func() error { called = true; return nil })
	if err == nil || called || len(f.Book) > 0 {
		t.Errorf("error %v, made %v, book %v", err, called, f.Book)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.Add([][]*Record{{add("a")}}, nothing); err != nil || len(opened(t, path).Book) != 1 {
		t.Errorf("error %v", err)
	}
}

// TestWrongRecords checks that records that cannot be meant are refused, in changes and in files.
func TestWrongRecords(t *testing.T) {
	for _, one := range []*Record{
		{Name: "", Removed: true},
		{Name: "a"},
		{Name: "a", Removed: true, Reset: true},
		{Name: "a", Removed: true, Idle: 1},
		{Name: "a", Reset: true, Cells: map[string]string{"plan": "p"}},
		{Name: "a", Cells: map[string]string{"plan": "p"}, Idle: -1},
	} {
		f := opened(t, "")
		if err := f.Add([][]*Record{{one}}, nothing); err == nil {
			t.Errorf("%+v is accepted", one)
		}
		line, err := encode(change{1, []*Record{one}})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.parse([]byte(header + "0123456789abcdef\n" + string(line))); err == nil {
			t.Errorf("%s is accepted", line)
		}
	}
}

// FuzzFile reads any file. What was read is the same when it is written and read again.
func FuzzFile(f *testing.F) {
	line, _ := encode(change{3, []*Record{add("a"), {Name: "b", Removed: true}}})
	f.Add([]byte(header + "0123456789abcdef\n" + string(line)))
	f.Add([]byte(header + "0123456789abcdef\n" + string(line) + string(line[:20])))
	f.Add([]byte(header + "0123456789abcdef\n00000000 {}\n" + string(line)))
	f.Add([]byte(header))
	f.Fuzz(func(t *testing.T, b []byte) {
		file := &File{Book: Book{}}
		if err := file.parse(b); err != nil && !errors.As(err, new(*DamageError)) {
			t.Fatal(err)
		}
		all, err := encode(change{file.number, file.Book.Records()})
		if err != nil {
			t.Fatal(err)
		}
		again := &File{Book: Book{}}
		if err := again.parse(append([]byte(header+"0123456789abcdef\n"), all...)); err != nil {
			t.Fatal(err)
		}
		if x, y := text(t, file.Book), text(t, again.Book); x != y {
			t.Errorf("got  %s\nwant %s", y, x)
		}
	})
}
