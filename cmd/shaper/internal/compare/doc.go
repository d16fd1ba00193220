// Package compare runs a capture through several meters side by side, independently of each
// other, and measures the traffic that each passes.
package compare
