package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// ReadText reads a file of at most the maximum size of a policy. The file may be an endless device.
func ReadText(what, path string) ([]byte, error) { return ReadLimited(what, path, policyfile.MaxSize) }

// ReadLimited reads a file of at most a number of bytes. what describes it in errors.
func ReadLimited(what, path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, PlainPathError(what, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if int64(len(text)) > most {
		return nil, fmt.Errorf("%s %q is larger than %d MiB, the maximum", what, path, most>>20)
	}
	return text, PlainPathError(what, err)
}

// PlainPathError writes the path of an error once, after what.
func PlainPathError(what string, err error) error {
	var e *os.PathError
	if errors.As(err, &e) {
		return fmt.Errorf("%s %q: %w", what, e.Path, e.Err)
	}
	return err
}
