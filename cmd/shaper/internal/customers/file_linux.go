package customers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/strictjson"
)

// The lines of a file: header with the epoch, then a line for each change with a checksum, oldest first.
const header = "shaper customers 1 "

const (
	maxGrowth   = 4 << 20 // size in bytes by which a file grows before it is written anew
	lineRecords = 1000    // records in a line of a file written anew
)

// Suffix is added to the path of a file of changes to get that of the file of customers.
const Suffix = ".added"

// PathOf returns the path of the file that belongs to a file of changes; "" if that is "".
func PathOf(changes string) string {
	if changes == "" {
		return ""
	}
	return changes + Suffix
}

// File is a book and its file on the disk. A change is kept as a whole when Add returns or, if the process or
// the host stops before, perhaps not at all.
type File struct {
	Book Book
	Path string // "": the book is not kept

	// Volatile files are not used after a restart of the host, so Add does not wait until they are on the
	// disk.
	Volatile bool

	epoch  string // begins with another book
	number uint64 // of the last change
	size   int64  // of the file, bytes; 0: it must be written anew
	base   int64  // size after it was written anew

	damaged bool // a part of the file cannot be used
}

// DamageError is the error for a file of which lines cannot be used.
type DamageError struct {
	Path   string
	Reason string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("file of customers %q: %s", e.Path, e.Reason)
}

// Open reads a file; if there is none, the book is empty. path "" means a book without a file. With a
// *DamageError the book has all customers of undamaged lines, and the next Add keeps a copy of the file. With
// another error it is empty.
func Open(path string) (*File, error) {
	f := &File{Book: Book{}, Path: path, epoch: fmt.Sprintf("%016x", rand.Uint64())}
	if path == "" {
		return f, nil
	}
	text, err := changes.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = f.parse(text)
	}
	f.damaged = err != nil
	return f, err
}

// Read returns the book in a file, as Open does.
func Read(path string) (Book, error) {
	f, err := Open(path)
	return f.Book, err
}

// change is a line of a file.
type change struct {
	Number uint64    `json:"number"`
	List   []*Record `json:"list"`
}

// parse reads the text of the file. The end of the last line may be missing: its change was not acknowledged.
func (f *File) parse(text []byte) error {
	first, rest, complete := bytes.Cut(text, []byte("\n"))
	epoch, ok := strings.CutPrefix(string(first), header)
	if !complete || !ok || len(epoch) != 16 || strings.Trim(epoch, "0123456789abcdef") != "" {
		return &DamageError{f.Path, "it is not of this version of shaper: its customers are not in force"}
	}
	f.epoch, f.size = epoch, int64(len(text))
	damaged, where := 0, 0
	for n := 2; len(rest) > 0; n++ {
		line, next, complete := bytes.Cut(rest, []byte("\n"))
		if !complete {
			f.size -= int64(len(rest))
			break
		}
		c, err := decode(line)
		if err != nil {
			if damaged++; damaged == 1 {
				where = n
			}
		} else {
			f.number = max(f.number, c.Number)
			for _, r := range c.List {
				f.Book.Apply(r)
			}
		}
		rest = next
	}
	f.base = f.size
	if damaged > 0 {
		f.size = 0 // the next change writes it anew
		return &DamageError{f.Path, fmt.Sprintf("%d of its lines are damaged, the first is line %d: "+
			"the customers in them are not in force", damaged, where)}
	}
	return nil
}

// encode returns the line of a change.
func encode(c change) ([]byte, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE(text), text), nil
}

// decode returns the change of a line.
func decode(line []byte) (c change, err error) {
	sum, text, ok := bytes.Cut(line, []byte(" "))
	if !ok || string(sum) != fmt.Sprintf("%08x", crc32.ChecksumIEEE(text)) {
		return c, errors.New("its checksum does not match")
	}
	if err := strictjson.Unmarshal(text, &c, 0); err != nil {
		return c, err
	}
	for _, r := range c.List {
		if r == nil {
			return c, errors.New("a record is missing")
		}
		if err := r.Check(); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Version identifies the book after its last change. It differs from those of all other books.
func (f *File) Version() string { return fmt.Sprintf("%s-%d", f.epoch, f.number) }

// Add makes changes, each a list of records. It writes all of them at once, and then calls do, which puts
// them into force. If the file cannot be written, or do fails, nothing changes.
func (f *File) Add(list [][]*Record, do func() error) error {
	var lines []byte
	number := f.number
	for _, records := range list {
		for _, r := range records {
			if err := r.Check(); err != nil {
				return err
			}
		}
		number++
		line, err := encode(change{number, records})
		if err != nil {
			return err
		}
		lines = append(lines, line...)
	}
	if err := f.append(lines); err != nil {
		return fmt.Errorf("file of customers: %w", err)
	}
	if err := do(); err != nil {
		if f.Path != "" {
			err = errors.Join(err, f.cut())
		}
		return err
	}
	f.number = number
	f.size += int64(len(lines))
	for _, records := range list {
		for _, r := range records {
			f.Book.Apply(r)
		}
	}
	return nil
}

// append adds lines to the file. They count when size does.
func (f *File) append(lines []byte) error {
	if f.Path == "" {
		return nil
	}
	var file *os.File
	for {
		if f.size == 0 || f.size > 2*f.base+maxGrowth {
			if err := f.Rewrite(); err != nil {
				return err
			}
		}
		var err error
		if file, err = changes.OpenFile(f.Path, os.O_WRONLY); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f.size = 0 // it was removed together with the interface
	}
	defer file.Close()
	err := file.Truncate(f.size) // removes an incomplete line
	if err == nil {
		_, err = file.WriteAt(lines, f.size)
	}
	if err == nil && !f.Volatile {
		err = file.Sync()
	}
	if err != nil {
		return errors.Join(err, file.Truncate(f.size))
	}
	return nil
}

// cut removes the lines that do not count. If it fails, the next change does so.
func (f *File) cut() error {
	file, err := changes.OpenFile(f.Path, os.O_WRONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	if err = file.Truncate(f.size); err == nil && !f.Volatile {
		err = file.Sync()
	}
	return err
}

// Rewrite writes the whole book to a new file, which then replaces the other one.
func (f *File) Rewrite() error {
	if f.Path == "" {
		return nil
	}
	text := []byte(header + f.epoch + "\n")
	records := f.Book.Records()
	for part := range slices.Chunk(records, lineRecords) {
		line, err := encode(change{f.number, part})
		if err != nil {
			return err
		}
		text = append(text, line...)
	}
	if len(records) == 0 { // the number must not begin again
		line, err := encode(change{Number: f.number})
		if err != nil {
			return err
		}
		text = append(text, line...)
	}
	if f.damaged {
		if damaged, err := changes.ReadFile(f.Path); err == nil {
			f.damaged = changes.Replace(f.Path+".damaged", damaged) != nil // for the user
		}
	}
	f.size = 0 // if the next step fails, the next call tries again
	if err := changes.Replace(f.Path, text); err != nil {
		return err
	}
	f.size, f.base = int64(len(text)), int64(len(text))
	return nil
}

// Include adds the records of a book, in place of those of the same names.
func (f *File) Include(book Book) error {
	if len(book) == 0 {
		return nil
	}
	for _, r := range book {
		f.Book.Apply(r)
	}
	f.number++
	return f.Rewrite()
}

// Keep writes the file if there is none, but records.
func (f *File) Keep() error {
	if len(f.Book) == 0 || f.Path == "" {
		return nil
	}
	file, err := changes.OpenFile(f.Path, os.O_RDONLY)
	if err == nil {
		return file.Close()
	}
	return f.Rewrite()
}
