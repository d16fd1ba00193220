package budgets

import "golang.org/x/sys/unix"

// preventCoreDump prevents core dumps of this process.
func preventCoreDump() { _ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) }
