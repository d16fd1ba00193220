package changes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// header is the first line of a file of changes.
const header = "shaper changes 1\n"

// maxGrowth is the size in bytes by which a file grows before it is written anew.
const maxGrowth = 1 << 20

// File is a book and the file that keeps it: a header, and a line for each call of Add, with a
// checksum. So a call is kept as a whole or, if the process or the host stops before Add
// returns, perhaps not at all.
type File struct {
	Book Book
	Path string // "": the book is not kept

	// Volatile says that the file is not used after a restart of the host, so Add does not wait
	// until it is on the disk.
	Volatile bool

	size int64 // of the file, bytes
	base int64 // size after it was written anew

	damaged bool // the file cannot be used, and is put aside
}

// DamageError means that a file of changes cannot be used.
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
	book, size, err := read(path)
	f.damaged = err != nil
	if book != nil {
		f.Book, f.size, f.base = book, size, size
	}
	return f, err
}

// Read returns the book in a file, as Open does.
func Read(path string) (Book, error) {
	f, err := Open(path)
	return f.Book, err
}

// read returns the book in a file, and the size of its complete lines.
func read(path string) (Book, int64, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("file of changes: %w: its changes are not in force", err)
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, 0, fmt.Errorf("file of changes: %w: its changes are not in force", err)
	}
	damaged := func(reason string) (Book, int64, error) { return nil, 0, &DamageError{path, reason} }
	rest, ok := bytes.CutPrefix(text, []byte(header))
	if !ok {
		return damaged("it is not of this version of shaper")
	}
	book := Book{}
	for n := 2; ; n++ {
		line, next, complete := bytes.Cut(rest, []byte("\n"))
		if !complete && n == 2 { // the first list is in the file from the beginning
			return damaged("it is cut off")
		}
		if !complete { // the call that wrote it did not return
			return book, int64(len(text) - len(rest)), nil
		}
		list, err := decode(line)
		if err != nil {
			return damaged(fmt.Sprintf("line %d: %v", n, err))
		}
		for _, c := range list {
			book.Apply(c)
		}
		rest = next
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
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	for i := range list {
		if err := list[i].Check(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Add applies changes to the book, all or none, and keeps them. Then it calls do, which puts
// them into force; if that fails, Add undoes them. It returns when they are on the disk, unless the
// file is volatile.
func (f *File) Add(list []Change, do func() error) error {
	for i := range list {
		if err := list[i].Check(); err != nil {
			return err
		}
	}
	undo := f.Book.apply(list)
	line, err := encode(list)
	applied := false
	if err == nil {
		err = f.write(line, func() error {
			err := do()
			applied = err == nil
			return err
		})
	}
	if !applied {
		undo()
	}
	return err
}

// write adds a line to the file and calls do.
func (f *File) write(line []byte, do func() error) error {
	if f.Path == "" {
		return do()
	}
	if f.size == 0 || f.size > 2*f.base+maxGrowth {
		return f.rewrite(do)
	}
	file, err := os.OpenFile(f.Path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) { // it was removed together with the interface
		return f.rewrite(do)
	}
	if err != nil {
		return fmt.Errorf("file of changes: %w", err)
	}
	defer file.Close()
	undo := func(err error) error { return errors.Join(err, file.Truncate(f.size)) }
	if err := file.Truncate(f.size); err != nil { // removes an incomplete line
		return fmt.Errorf("file of changes: %w", err)
	}
	if _, err := file.WriteAt(line, f.size); err != nil {
		return undo(fmt.Errorf("file of changes: %w", err))
	}
	if err := do(); err != nil {
		return undo(err)
	}
	f.size += int64(len(line))
	if f.Volatile {
		return nil
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("the changes are in force, but may be lost: file of changes: %w", err)
	}
	return nil
}

// Include adds the changes of a book. They replace those of the same targets.
func (f *File) Include(book Book) error {
	if len(book) == 0 {
		return nil
	}
	maps.Copy(f.Book, book)
	return f.rewrite(func() error { return nil })
}

// Save writes the file if it is missing and the book is not empty.
func (f *File) Save() error {
	if _, err := os.Lstat(f.Path); f.Path == "" || len(f.Book) == 0 || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return f.rewrite(func() error { return nil })
}

// rewrite writes the whole book to a new file, which then replaces the other one, and calls do.
func (f *File) rewrite(do func() error) error {
	text := []byte(header)
	line, err := encode(slices.Collect(f.Book.All()))
	if err != nil {
		return err
	}
	prepared, err := prepare(f.Path, append(text, line...), f.Volatile)
	if err != nil {
		return fmt.Errorf("file of changes: %w", err)
	}
	defer prepared.discard()
	if err := do(); err != nil {
		return err
	}
	if f.damaged {
		f.damaged = os.Rename(f.Path, f.Path+".damaged") != nil // for the user
	}
	f.size = 0 // if the next step fails, the next call tries again
	if err := prepared.replace(f.Volatile); err != nil {
		return fmt.Errorf("the changes are in force, but not kept: file of changes: %w", err)
	}
	f.size = int64(len(text) + len(line))
	f.base = f.size
	return nil
}
