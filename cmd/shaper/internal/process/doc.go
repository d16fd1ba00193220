// Package process runs the policy of a shaper run or shaper tap: it attaches it, follows its changes,
// quotas, schedules and budgets, answers other processes and the API, and detaches it at the end.
//
// A service is a policy at one interface or TAP device. Its plane shapes the packets: in the
// kernel, or in this process between two devices. Things that exist once per process, such as its
// output and its signals, are in the type process. One goroutine owns a service and never waits for
// another: neither a client of the metrics nor a stopped terminal can delay the detaching.
package process
