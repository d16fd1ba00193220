// Package changes keeps what shaper set changes in a running shaper: the plans of customers,
// and the rates of links and queues. The changes stay in force when the policy is reloaded.
package changes
