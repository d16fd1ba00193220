package live

import (
	"errors"
	"net"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/spelling"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// nearCustomer returns the question whether a similar customer was meant, or "".
func nearCustomer(r *policyfile.Roster, name string) string {
	return spelling.DidYouMean(name, r.Few(spelling.MostCompared))
}

// NearInterface adds the question whether a similar interface was meant to the error for a missing one. It
// returns other errors unchanged.
func NearInterface(err error) error {
	missing, ok := errors.AsType[*kernel.NoInterfaceError](err)
	if !ok {
		return err
	}
	var names []string
	list, _ := net.Interfaces() // after an error there is no suggestion
	for _, i := range list {
		names = append(names, i.Name)
	}
	return &suggestedError{err, spelling.DidYouMean(missing.Name, names)}
}

// suggestedError is an error with a question behind it.
type suggestedError struct {
	error
	question string
}

func (e *suggestedError) Error() string { return e.error.Error() + e.question }
func (e *suggestedError) Unwrap() error { return e.error }
