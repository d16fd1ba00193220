package policyfile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

const (
	maxCustomersSize = 256 << 20 // size of a file of customers, bytes
	maxKeptCustomers = 64 << 10  // size up to which a label contains the text, bytes
)

// CustomerFile identifies the text of a file of customers. It is part of a label, so a large
// text is not in it.
type CustomerFile struct {
	Path   string `json:"path"`           // absolute
	SHA256 string `json:"sha256"`         // of the text, hexadecimal
	Text   string `json:"text,omitempty"` // empty for a large file
	Copy   string `json:"copy,omitempty"` // path of a copy of a large file; "" if there is none
}

// Large reports whether the text is too large for a label. The file is nil in a policy without
// customers.
func (f *CustomerFile) Large() bool { return f != nil && f.Text == "" }

// Read returns the text with which the policy was compiled.
func (f *CustomerFile) Read() (string, error) {
	if f.Text != "" {
		return f.Text, nil
	}
	if f.Copy != "" {
		if copied, text, err := openCustomers(f.Copy); err == nil && copied.SHA256 == f.SHA256 {
			return text, nil
		}
	}
	now, text, err := openCustomers(f.Path)
	if err == nil && now.SHA256 != f.SHA256 {
		err = errors.New("the file has changed since the policy was applied: reload the policy")
	}
	return text, err
}

// openCustomers reads a file of customers. Errors do not contain its path.
func openCustomers(path string) (*CustomerFile, string, error) {
	text, sum, err := readAndHash(path, maxCustomersSize)
	var e *fs.PathError
	if errors.As(err, &e) {
		err = e.Err
	}
	if err != nil {
		return nil, "", err
	}
	out := &CustomerFile{Path: path, SHA256: hex.EncodeToString(sum)}
	if len(text) <= maxKeptCustomers {
		out.Text = text
	}
	return out, text, nil
}

// readAndHash reads a whole file of at most a size in bytes. The limit also ends the reading of an
// endless device.
func readAndHash(path string, most int64) (text string, sum []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", nil, err
	}
	var b strings.Builder
	hash, size := sha256.New(), info.Size()
	if size <= most {
		b.Grow(int(size))
		size, err = io.Copy(io.MultiWriter(&b, hash), io.LimitReader(file, most+1))
	}
	if size > most {
		return "", nil, fmt.Errorf("larger than %d MiB, the maximum", most>>20)
	}
	return b.String(), hash.Sum(nil), err
}
