// Package compare runs a capture through several meters side by side, independently of each other,
// and measures the traffic passed by each.
package compare
