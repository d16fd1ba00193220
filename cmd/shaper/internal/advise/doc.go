// Package advise finds the bursts of policers: those that the packets of a capture need, and
// those that TCP needs to fill a rate.
package advise
