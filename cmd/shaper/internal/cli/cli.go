package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// Exit codes.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
	ExitPipe   = 128 + int(syscall.SIGPIPE) // the reader of the standard output closed it
)

// Streams are the standard streams of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// UsageError is an error in the command line or in a policy.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usagef returns a UsageError with the text that fmt.Errorf writes.
func Usagef(format string, args ...any) error { return &UsageError{Err: fmt.Errorf(format, args...)} }

// ErrInterrupted is the cause of a context canceled by a signal.
var ErrInterrupted = errors.New("interrupted")

// ErrNothing is the error of a command whose printed result is that there is nothing, such as no customer of
// an address. The exit code is ExitFailed, and no message is printed.
var ErrNothing = errors.New("nothing")

// noneError is the error of a command for all shaped interfaces if there are none.
type noneError struct{ error }

// AllOfNone marks the error that no interface is shaped as the result of a command for all of them, which
// succeeds: it is printed, and the exit code is ExitDone.
func AllOfNone(err error) error { return &noneError{err} }

// IsAllOfNone reports whether an error was marked by AllOfNone.
func IsAllOfNone(err error) bool { return errors.As(err, new(*noneError)) }

// unprintedError is an error of printing the result of a change. The change is in force, so the
// exit code is that of success.
type unprintedError struct{ err error }

func (e *unprintedError) Error() string { return e.err.Error() }

// AfterChange marks an error of printing the result of a change that is in force.
func AfterChange(err error) error {
	if err == nil {
		return nil
	}
	return &unprintedError{err}
}

// IsUnprinted reports whether a change is in force, and only printing its result failed.
func IsUnprinted(err error) bool {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(list.Unwrap(), func(err error) bool { return !IsUnprinted(err) })
	}
	_, ok := err.(*unprintedError)
	return ok
}

// IsUsage reports whether an error is in the command line or in a policy.
func IsUsage(err error) bool {
	return errors.As(err, new(*UsageError)) || errors.As(err, new(*output.NameError)) ||
		errors.As(err, new(*policyfile.InvalidError))
}
