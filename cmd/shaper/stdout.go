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

// stdout is the standard output of a command. It keeps the first error of writing, because the
// packages that write help and tables do not report errors.
type stdout struct {
	io.Writer
	closed func() // called when the reader has closed it
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

// firstError returns the first error of writing.
func (s *stdout) firstError() error {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.err
}

// errClosed is the cause of a context that was canceled because the reader closed the standard
// output.
var errClosed = errors.New("standard output is closed")

// onlyClosed reports whether err has no errors other than those of writing to a closed
// standard output.
func onlyClosed(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !onlyClosed(err) })
	}
	return err == nil || errors.Is(err, syscall.EPIPE) || errors.Is(err, errClosed)
}

// handlePipe makes writing to a closed standard output an error. Otherwise Go would end the
// process at once and leave temporary files.
func handlePipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// diePipe ends the process by SIGPIPE, like a process that does not handle it.
func diePipe() {
	signal.Reset(syscall.SIGPIPE)
	os.Stdout.WriteString("\n") // Go raises SIGPIPE
	os.Exit(exitPipe)
}
