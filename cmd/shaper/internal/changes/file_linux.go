package changes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/strictjson"
)

// The lines of a file of changes: a header, then a line for each call of Add with a checksum. mark
// confirms the changes of all lines before it. Without it, a process was killed while it made them.
const (
	header  = "shaper changes 2\n"
	header1 = "shaper changes 1\n" // without marks
	mark    = "done\n"
)

// maxGrowth is the size in bytes by which a file grows before it is written anew.
const maxGrowth = 1 << 20

// File is a book and its file on the disk. A call of Add is kept as a whole or, if the process or
// the host stops before Add returns, perhaps not at all.
type File struct {
	Book Book
	Path string // "": the book is not kept

	// Interrupted lists the targets of changes whose process was killed while it made them. The book
	// contains the changes, but they may not be in force. The next call of Add must put them into force, too.
	Interrupted []Target

	// Volatile files are not used after a restart of the host, so Add does not wait until they are
	// on the disk.
	Volatile bool

	// With Required, changes that cannot be kept are not made.
	Required bool

	size   int64 // of the file, bytes; 0: it must be written anew
	base   int64 // size after it was written anew
	behind bool  // the file lacks changes of the book

	damaged bool // the file cannot be used, and is put aside
}

// UnkeptError is the error for changes that are in force but missing in the file of changes.
type UnkeptError struct{ Err error }

func (e *UnkeptError) Error() string { return fmt.Sprintf("in force, but not kept: %v", e.Err) }
func (e *UnkeptError) Unwrap() error { return e.Err }

// DamageError is the error for an unusable file of changes.
type DamageError struct {
	Path   string
	Reason string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("file of changes %q: %s: its changes are not in force", e.Path, e.Reason)
}

// Open reads a file; if there is none, the book is empty. path "" means a book without a file.
// With an error the book is empty, too, and the first Add puts the file aside.
func Open(path string) (*File, error) {
	f := &File{Book: Book{}, Path: path}
	if path == "" {
		return f, nil
	}
	err := f.read()
	if f.damaged = err != nil; f.damaged {
		*f = File{Book: Book{}, Path: path, damaged: true}
	}
	return f, err
}

// Read returns the book in a file, and the targets of interrupted changes, as Open does.
func Read(path string) (book Book, interrupted []Target, err error) {
	f, err := Open(path)
	return f.Book, f.Interrupted, err
}

// readTries is the number of attempts to read a file: a rollback or a reload loads a policy without
// unreadable changes, and the kernel may be short of memory for a moment.
const readTries = 3

// read reads the book in the file, and the size of its complete lines.
func (f *File) read() error {
	text, err := ReadFile(f.Path)
	for try := 1; err != nil && try < readTries && !errors.Is(err, fs.ErrNotExist) &&
		!errors.Is(err, fs.ErrPermission); try++ {
		time.Sleep(time.Duration(try) * 10 * time.Millisecond)
		text, err = ReadFile(f.Path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("file of changes: %w: its changes are not in force", err)
	}
	return f.parse(text)
}

// parse is read for the text of the file.
func (f *File) parse(text []byte) error {
	rest, ok := bytes.CutPrefix(text, []byte(header))
	if !ok {
		if rest, ok = bytes.CutPrefix(text, []byte(header1)); !ok {
			return &DamageError{f.Path, "it is not of this version of shaper"}
		}
		rest = bytes.ReplaceAll(rest, []byte("\n"), []byte("\n"+mark))
		defer func() { f.size = 0 }() // the next call writes it anew
	}
	for n := 2; ; n++ {
		line, next, complete := bytes.Cut(rest, []byte("\n"))
		if !complete && n == 2 { // the book is in the file from the beginning
			return &DamageError{f.Path, "it is cut off"}
		}
		if !complete { // the call of Add that wrote it did not return
			f.size = int64(len(text) - len(rest))
			f.base = f.size
			return nil
		}
		list, err := decode(line)
		if err != nil {
			return &DamageError{f.Path, fmt.Sprintf("line %d: %v", n, err)}
		}
		for _, c := range list {
			f.Book.Apply(c)
		}
		if rest, complete = bytes.CutPrefix(next, []byte(mark)); complete {
			f.Interrupted = nil
			continue
		}
		for _, c := range list {
			f.Interrupted = append(f.Interrupted, c.Target)
		}
	}
}

// encode returns the line of a list.
func encode(list []Change) ([]byte, error) {
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE(text), text), nil
}

// decode returns the list of a line.
func decode(line []byte) (list []Change, err error) {
	sum, text, ok := bytes.Cut(line, []byte(" "))
	if !ok || string(sum) != fmt.Sprintf("%08x", crc32.ChecksumIEEE(text)) {
		return nil, errors.New("its checksum does not match")
	}
	if err := strictjson.Unmarshal(text, &list, 0); err != nil {
		return nil, err
	}
	for i := range list {
		if err := list[i].Check(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Add applies changes to the book, all or none, and calls do, which puts them into force; if do
// fails, Add undoes them. The caller must hold the lock. Add returns when the changes are on the
// disk, unless the file is volatile. If the file cannot be written, the changes are in force
// nevertheless, and the error is an *UnkeptError.
func (f *File) Add(list []Change, do func() error) error {
	var file *os.File
	var line []byte
	return f.add(list, do, func() (err error) {
		if line, err = encode(list); err == nil {
			file, err = f.begin(line)
		}
		return err
	}, func(done bool) error {
		if file == nil {
			return nil
		}
		defer file.Close()
		err := f.end(file, len(line), done)
		if err != nil && f.rewrite() == nil {
			return nil
		}
		return err
	})
}

// AddUnkept is Add for a caller without the lock: the file lacks the changes until Keep.
func (f *File) AddUnkept(list []Change, do func() error) error {
	return f.add(list, do, func() error { return nil }, func(done bool) error {
		f.behind = f.behind || done
		return nil
	})
}

// add applies changes and calls do. Before do it calls begin, and afterwards end.
func (f *File) add(list []Change, do, begin func() error, end func(done bool) error) error {
	for i := range list {
		if err := list[i].Check(); err != nil {
			return err
		}
	}
	unkept := begin()
	if unkept != nil && f.Required {
		return fmt.Errorf("file of changes: %w", unkept)
	}
	undo := f.Book.apply(list)
	err := do()
	if err != nil {
		undo()
	} else {
		f.Interrupted = nil
	}
	unkept = errors.Join(unkept, end(err == nil))
	switch {
	case err != nil:
		return errors.Join(err, unkept)
	case unkept != nil && f.Path != "":
		f.behind = true
		return &UnkeptError{fmt.Errorf("file of changes: %w", unkept)}
	}
	return nil
}

// begin adds a line to the file, without its mark. It returns nil if there is no file.
func (f *File) begin(line []byte) (file *os.File, err error) {
	if f.Path == "" {
		return nil, nil
	}
	for {
		if f.behind || f.size == 0 || f.size > 2*f.base+maxGrowth {
			if err := f.rewrite(); err != nil {
				return nil, err
			}
		}
		file, err = open(f.Path, os.O_WRONLY)
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		f.size = 0 // it was removed together with the interface
	}
	if err != nil {
		return nil, err
	}
	if err = file.Truncate(f.size); err == nil { // removes an incomplete line
		_, err = file.WriteAt(line, f.size)
	}
	if err != nil {
		return nil, errors.Join(err, file.Truncate(f.size), file.Close())
	}
	return file, nil
}

// end marks the last line, whose length is n, as done, or removes it.
func (f *File) end(file *os.File, n int, done bool) error {
	if !done {
		return file.Truncate(f.size)
	}
	if _, err := file.WriteAt([]byte(mark), f.size+int64(n)); err != nil {
		return err
	}
	f.size += int64(n + len(mark))
	if f.Volatile {
		return nil
	}
	return file.Sync()
}

// Include adds the changes of a book. They replace those of the same targets.
func (f *File) Include(book Book) error {
	if len(book) == 0 {
		return nil
	}
	maps.Copy(f.Book, book)
	f.behind = true
	return f.Keep()
}

// Keep writes the file if it lacks changes of the book. The caller must hold the lock.
func (f *File) Keep() error {
	if missing := len(f.Book) > 0 && !exists(f.Path); f.Path == "" || !f.behind && !missing {
		return nil
	}
	if err := f.rewrite(); err != nil {
		return &UnkeptError{fmt.Errorf("file of changes: %w", err)}
	}
	return nil
}

// Behind reports whether the file lacks changes of the book.
func (f *File) Behind() bool { return f.behind && f.Path != "" }

// rewrite writes the whole book to a new file, which then replaces the other one.
func (f *File) rewrite() error {
	line, err := encode(slices.Collect(f.Book.All()))
	if err != nil {
		return err
	}
	text := append([]byte(header), line...)
	if len(f.Interrupted) == 0 {
		text = append(text, mark...)
	}
	prepared, err := prepare(f.Path, text, f.Volatile)
	if err != nil {
		return err
	}
	defer prepared.discard()
	if f.damaged {
		f.damaged = prepared.keepOld(".damaged") != nil // for the user
	}
	f.size = 0 // if the next step fails, the next call tries again
	if err := prepared.replace(f.Volatile); err != nil {
		return err
	}
	f.size, f.base, f.behind = int64(len(text)), int64(len(text)), false
	return nil
}
