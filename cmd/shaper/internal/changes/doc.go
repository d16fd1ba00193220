// Package changes keeps the changes of shaper set to a running shaper: the plans of customers, and
// the rates of links and queues. They stay in force when the policy is reloaded.
package changes
