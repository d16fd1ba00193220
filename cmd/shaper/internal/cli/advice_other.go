//go:build !linux

package cli

// AdviceOn returns "": only errors of live commands have advice.
func AdviceOn(error) string { return "" }

// Advised returns the error.
func Advised(err error) error { return err }
