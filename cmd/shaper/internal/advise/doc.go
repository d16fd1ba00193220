// Package advise finds bursts of policers: those needed by the packets of a capture, and those
// needed by TCP to fill a rate.
package advise
