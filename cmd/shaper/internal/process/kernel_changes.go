package process

import (
	"errors"
	"maps"
	"os"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// openChanges opens the file of changes of the interface, before it is shaped. The file may be left
// by an earlier process with pinned shapers.
func (k *kernelPlane) openChanges() error {
	path, err := kernel.ChangesPath(k.name, k.options.Directions.List)
	if err != nil {
		return err
	}
	state := &k.state
	if state.dir != "" {
		path = state.path(k.stateName, stateChanges)
	}
	if k.changer != nil { // the interface is back, and may have another number
		k.changer.Lock()
		defer k.changer.Unlock()
		k.changer.SetPath(path)
		return nil
	}
	inForce, added, pinned, err := k.pinnedBefore(path)
	if err != nil {
		return err // nobody knows whether the changes are in force
	}
	for _, left := range []string{path, customers.PathOf(path)} { // by a killed process
		if _, err := os.Lstat(left); err == nil && state.dir == "" && !pinned {
			if err := os.Remove(left); err != nil {
				return err
			}
		}
	}
	file, err := changes.Open(path)
	if err != nil && (state.dir != "" || !errors.Is(err, os.ErrPermission)) { // attaching explains this one
		k.warn("%v", err)
	}
	if err := file.Include(inForce); err != nil {
		k.warn("%v", err)
	}
	k.useChanges(file)
	if err := k.changer.Customers.Include(added); err != nil {
		k.warn("%v", err)
	}
	return nil
}

// restore returns the saved customers of a direction.
func (k *kernelPlane) restore(direction dataplane.Direction) []byte {
	text, err := k.state.read(directionName(k.host, direction), stateCustomers)
	if err != nil {
		k.warn("%v: customers start anew", err)
	}
	return text
}

// pinnedBefore reports whether there are shapers that this process may take over. It returns the
// changes and the customers that they keep in other files than those of path: these stay in force.
func (k *kernelPlane) pinnedBefore(
	path string,
) (inForce changes.Book, added customers.Book, pinned bool, err error) {
	list, err := kernel.ShapersAt(k.name, k.options.Directions.List)
	if errors.Is(err, os.ErrPermission) {
		return nil, nil, false, nil // without the permission to look it cannot take over either
	}
	if err != nil {
		return nil, nil, false, err
	}
	defer live.CloseAll(list)
	inForce, added = changes.Book{}, customers.Book{}
	for _, sh := range list {
		source, sourceErr := policyfile.SourceOf(sh.Label)
		owned, ownedErr := sh.Owned()
		if sourceErr != nil || ownedErr != nil || owned || source.Changes == path {
			continue // attaching will explain the errors
		}
		book, _, readErr := changes.Read(source.Changes) // attaching puts interrupted changes into force
		maps.Copy(inForce, book)
		more, customersErr := customers.Read(customers.PathOf(source.Changes))
		maps.Copy(added, more)
		if readErr = errors.Join(readErr, customersErr); readErr != nil {
			k.warn("%v", readErr)
		}
	}
	return inForce, added, len(list) > 0, nil
}
