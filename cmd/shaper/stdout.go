package main

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
)

// stdout is the standard output of a command. It keeps the first error of
// writing to it, because help and tables are written by packages that do not
// report one.
type stdout struct {
	io.Writer
	closed func() // called when nobody reads any more
	lock   sync.Mutex
	err    error
}

func (s *stdout) Write(b []byte) (int, error) {
	n, err := s.Writer.Write(b)
	if err != nil {
		s.lock.Lock()
		defer s.lock.Unlock()
		if s.err == nil {
			s.err = err
			if errors.Is(err, syscall.EPIPE) {
				s.closed()
			}
		}
	}
	return n, err
}

// fault is the first error of writing.
func (s *stdout) fault() error {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.err
}

// errClosed is the cause of a context that ended because nobody reads the
// standard output.
var errClosed = errors.New("standard output is closed")

// onlyClosed says whether all that failed, if anything did, is writing to a
// closed standard output.
func onlyClosed(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !onlyClosed(err) })
	}
	return err == nil || errors.Is(err, syscall.EPIPE) || errors.Is(err, errClosed)
}

// handlePipe makes writing to a closed standard output an error. Otherwise Go
// ends the process at once, and temporary files stay.
func handlePipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// diePipe ends the process as one that does not handle SIGPIPE: without a word.
func diePipe() {
	signal.Reset(syscall.SIGPIPE)
	os.Stdout.WriteString("\n") // Go raises SIGPIPE
	os.Exit(exitPipe)
}
