// Package compare runs a capture through several meters side by side, each as if it were
// alone, and measures what passes.
package compare
