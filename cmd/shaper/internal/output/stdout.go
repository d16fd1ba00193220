package output

import (
	"errors"
	"io"
	"slices"
	"sync"
)

// Stdout is the standard output of a command. It keeps the first error of writing, because the
// packages for help and tables do not report errors. It is safe for concurrent use if Writer is.
type Stdout struct {
	io.Writer
	Closed func() // called after the reader closed it
	lock   sync.Mutex
	err    error
}

func (s *Stdout) Write(b []byte) (int, error) {
	n, err := s.Writer.Write(b)
	if err != nil {
		s.lock.Lock()
		defer s.lock.Unlock()
		if s.err == nil {
			s.err = err
			if IsClosed(err) {
				s.Closed()
			}
		}
	}
	return n, err
}

// FirstError returns the first error of writing.
func (s *Stdout) FirstError() error {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.err
}

// ErrClosed is the cause of a context canceled because the reader closed the standard output.
var ErrClosed = errors.New("standard output is closed")

// OnlyClosed reports whether all errors in err are of writing to a closed standard output.
func OnlyClosed(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !OnlyClosed(err) })
	}
	return err == nil || IsClosed(err) || errors.Is(err, ErrClosed)
}
