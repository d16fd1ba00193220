package kernel

// Identity identifies an interface independently of its name. It is comparable.
type Identity = iface

// Identify returns the identity of the named interface. The error is a
// *NoInterfaceError if there is none.
func Identify(name string) (Identity, error) { return identify(name) }
