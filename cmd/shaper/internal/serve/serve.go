package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/process"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// FileName is the name of the configuration in its directory.
const FileName = "shaper.yaml"

// Run shapes the interfaces chosen by the configuration in a directory until ctx is done.
func Run(ctx context.Context, s cli.Streams, dir string) (err error) {
	f, err := newFiles(dir)
	if err != nil {
		return err
	}
	host, err := process.NewHost(s, f.config, f.paths())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	for _, p := range f.policies {
		p.flags.Warn(host.Errors(), p.compiled, "")
	}
	if _, err := kernel.ClearOrphans(); err != nil {
		return cli.Advised(err)
	}
	v := newSupervisor(host, f)
	return host.Serve(api{v, ""}, func() error { return v.run(ctx) })
}

// Check reads and compiles the files of a directory, as Run does before it shapes, and prints their warnings.
func Check(s cli.Streams, dir string) error {
	f, err := newFiles(dir)
	if err != nil {
		return err
	}
	for _, p := range f.policies {
		p.flags.Warn(s.Err, p.compiled, "")
	}
	_, err = fmt.Fprintf(s.Out, "%s: no errors, interfaces: %d, policies: %d\n", say.Printable(f.path),
		len(f.config.Interfaces), len(f.policies))
	return err
}

// files are the configuration and the policies that it names.
type files struct {
	dir      string
	path     string // of the configuration
	config   *policyfile.Serve
	policies map[string]*policy // by source
}

// policy is a policy of one or more entries.
type policy struct {
	flags    cli.PolicyFlags
	compiled *policyfile.Compiled
	refused  error // by an interface, in the last reload
}

// newFiles reads the configuration and all policies.
func newFiles(dir string) (*files, error) {
	f := &files{dir: dir, path: filepath.Join(dir, FileName)}
	text, err := cli.ReadText("configuration", f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cli.Usagef("%w: it chooses the interfaces, such as interfaces: [{match: eth0, rate: 50mbit}]", err)
	}
	if err != nil {
		return nil, &cli.UsageError{Err: err}
	}
	if f.config, err = policyfile.LoadServe(say.Printable(f.path), text); err != nil {
		return nil, &cli.UsageError{Err: err}
	}
	for _, path := range []*string{&f.config.Control, &f.config.ControlRead, &f.config.State} {
		if *path != "" {
			*path = f.absolute(*path)
		}
	}
	var errs []error
	for at := range f.config.Interfaces {
		e := &f.config.Interfaces[at]
		if err := new(process.RunOptions).SetKernel(e.Hook, e.Pacer, e.GSOLimit); err != nil {
			errs = append(errs, &cli.UsageError{Err: fmt.Errorf("%s: %w", e.Place, err)})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return f, f.readPolicies()
}

// absolute returns a path of the configuration, which is relative to its directory.
func (f *files) absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(f.dir, path)
}

// readPolicies reads and compiles the policies of all entries, each once. It joins their errors.
func (f *files) readPolicies() error {
	f.policies = map[string]*policy{}
	var errs []error
	for at := range f.config.Interfaces {
		e := &f.config.Interfaces[at]
		if f.policies[source(e)] != nil {
			continue
		}
		p := &policy{}
		if p.flags.One.Rate = e.Rate; e.Policy != "" {
			p.flags.File = f.absolute(e.Policy)
		}
		f.policies[source(e)] = p
		var err error
		if p.compiled, err = p.flags.Load(); err == nil {
			err = new(process.RunOptions).Check(p.compiled)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// source identifies the policy of an entry.
func source(e *policyfile.ServeInterfaces) string {
	if e.Policy != "" {
		return "policy " + e.Policy
	}
	return "rate " + e.Rate
}

// paths returns the files that are read again on a reload.
func (f *files) paths() []string {
	out := []string{f.path}
	for _, p := range f.policies {
		if p.flags.File != "" {
			out = append(out, p.flags.File)
		}
	}
	return out
}

// options returns the options of a service.
func (f *files) options(e *policyfile.ServeInterfaces) *process.RunOptions {
	o := &process.RunOptions{Pin: e.Pin, Repair: e.Repair, Dry: e.Dry}
	o.Policy = f.policies[source(e)].flags
	o.Directions.List = e.Directions
	_ = o.SetKernel(e.Hook, e.Pacer, e.GSOLimit) // newFiles has checked them
	return o
}

// retry is the time after which a failed interface is tried again: it doubles with each failure.
func retry(failures int) time.Duration { return min(time.Second<<min(failures, 6), time.Minute) }
