// Package say writes numbers, policies and tables for people: one way to write a count, a
// rate, a time, a match, a meter and a queue.
package say
