package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// API is what the server can do with the shapers of a process. The methods may be called
// concurrently. Values are encoded as JSON afterwards and must not change any more.
type API interface {
	// Of returns the API of the interfaces chosen by a name or a pattern; "" chooses all. The error is a
	// *NoInterfaceError if there is none.
	Of(ctx context.Context, pattern string) (API, error)
	Status(context.Context) (any, error)
	Stats(context.Context) (any, error)
	// Views returns all that shaper status prints, or with counters shaper stats, in a form for commands
	// with the same ViewVersion.
	Views(ctx context.Context, counters bool) (any, error)
	// Links returns the counters of links, as views for the commands.
	Links(ctx context.Context, views bool) (any, error)
	ViewVersion() string
	// Customers returns a function to write the first customers as JSON; top 0 means all. It is
	// sorted by bytes, dropped or rate.
	Customers(ctx context.Context, top int, by string) (write func(io.Writer) error, err error)
	Customer(ctx context.Context, name string) (any, error)
	Changes(context.Context) ([]changes.Change, error)
	// Sizes returns the number of rows written by Customers for all customers, and about the number
	// of changes.
	Sizes(context.Context) (customers, changes int, err error)
	// Set makes changes, all or none.
	Set(context.Context, []changes.Change) error
	// ChangeCustomers adds, replaces and removes customers, all or none.
	ChangeCustomers(context.Context, live.CustomerRequest) (live.CustomerReply, error)
	// CustomerPage returns the terms of customers.
	CustomerPage(context.Context, live.CustomerQuery) (live.CustomerPage, error)
	// Reload reads the policy file again. With confirm, a new policy rolls back after this time unless it is
	// confirmed.
	Reload(ctx context.Context, confirm time.Duration) (Reloaded, error)
	// Confirm makes policies permanent that would roll back. The error is an *InputError if there are none.
	Confirm(context.Context, changes.Author) ([]Confirmed, error)
	// Detach detaches some directions; nil: all. It returns the list of what was removed, by interface.
	Detach(context.Context, []dataplane.Direction, changes.Author) (any, error)
}

// Reloaded is the answer to a reload.
type Reloaded struct {
	Policy     string           `json:"policy"`              // name; "": several are in force
	Interfaces int              `json:"interfaces"`          // number of the chosen ones that are shaped
	Attaching  int              `json:"attaching,omitempty"` // number of the chosen ones that will be shaped
	Shapers    []ReloadedShaper `json:"shapers"`             // those with another policy than before
	// the policies roll back then unless they are confirmed
	Until time.Time `json:"confirm_until,omitzero"`
}

// ReloadedShaper is a shaper with a new policy: the output of reload --json, one line per shaper.
type ReloadedShaper struct {
	Interface string                 `json:"interface"`
	Direction string                 `json:"direction"`
	Program   uint32                 `json:"program_id"`
	Policy    string                 `json:"policy"`
	Classes   []compiled.ClassChange `json:"classes"`
	Kept      []Change               `json:"changes"` // by shaper set, still in force
	// cap of the device's GSO size, bytes, if the rate of the slowest queue needs it
	GSOLimit uint32 `json:"gso_limit,omitempty"`
}

// Confirmed is a shaper with a confirmed policy: the output of confirm --json, one line per shaper.
type Confirmed struct {
	Interface string `json:"interface"`
	Direction string `json:"direction"`
	State     string `json:"state"` // "confirmed"
	Program   uint32 `json:"program_id"`
	Policy    string `json:"policy"`
}

// ConfirmedOf describes a shaper whose policy was confirmed.
func ConfirmedOf(about *kernel.About) Confirmed {
	return Confirmed{
		about.Interface, about.Direction.String(), "confirmed", uint32(about.Program), live.PolicyName(about),
	}
}

// ErrNothing is the error if there is nothing to confirm.
var ErrNothing = &InputError{
	http.StatusUnprocessableEntity,
	errors.New("nothing to confirm: confirmed already, rolled back, or applied without --confirm"),
}

// WarningHeader is the header of an answer to changes that are in force, but not kept. It says why.
const WarningHeader = "Shaper-Warning"

// NoInterfaceError is the error for a name or pattern of interfaces, "" for all, that chooses none.
type NoInterfaceError struct{ Pattern string }

func (e *NoInterfaceError) Error() string {
	if e.Pattern == "" {
		return "no interface is shaped by this process"
	}
	return fmt.Sprintf("interface %q is not shaped by this process: the status lists those that are", e.Pattern)
}

// ErrSeveral is the error of a request for one interface that chooses several.
var ErrSeveral = &InputError{
	http.StatusBadRequest,
	errors.New("several interfaces are shaped: choose one, such as ?interface=eth0"),
}

// InputError is the error for a request that is wrong, or that the policy does not allow.
type InputError struct {
	Status int // of HTTP
	Err    error
}

func (e *InputError) Error() string { return e.Err.Error() }
func (e *InputError) Unwrap() error { return e.Err }

func badRequest(format string, args ...any) error {
	return &InputError{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

// errTurn means that other clients hold the turn.
var errTurn = errors.New("other clients are reading customers, or send or read a large list: try again")

// httpStatus returns the HTTP status of an error.
func httpStatus(err error) int {
	var input *InputError
	switch {
	case errors.As(err, &input):
		return input.Status
	case errors.Is(err, live.ErrVersion):
		return http.StatusPreconditionFailed
	case errors.Is(err, live.ErrNoCustomer):
		return http.StatusNotFound
	case errors.As(err, new(*live.CustomerError)), errors.As(err, new(*policyfile.CustomerError)),
		errors.Is(err, policyfile.ErrNoTable), errors.Is(err, policyfile.ErrCgroups):
		return http.StatusUnprocessableEntity
	case errors.Is(err, live.ErrBusy), errors.Is(err, errTurn), errors.Is(err, context.Canceled),
		errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	case errors.As(err, new(*policyfile.UnknownError)), errors.As(err, new(*NoInterfaceError)),
		errors.Is(err, live.ErrNoCustomers):
		return http.StatusNotFound
	case errors.Is(err, changes.ErrEnded), errors.As(err, new(*policyfile.TermsError)),
		errors.As(err, new(*dataplane.FieldError)), errors.As(err, new(*policyfile.InvalidError)):
		return http.StatusUnprocessableEntity
	}
	return http.StatusInternalServerError
}

// Waiting time for what others use.
const patience = 3 * time.Second

// Chooses reports whether a name or a pattern, in the syntax of path.Match, chooses an interface. "" chooses
// all.
func Chooses(pattern, name string) bool {
	chosen, err := path.Match(pattern, name)
	return pattern == "" || chosen && err == nil
}

// turn is a right that one client holds at a time.
type turn chan struct{}

// take waits for the turn, at most for a time.
func (t turn) take(ctx context.Context, wait time.Duration) error {
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case t <- struct{}{}:
		return nil
	case <-late.C:
		return errTurn
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) end() { <-t }
