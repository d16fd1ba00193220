//go:build !linux

package cli

// Only errors of live commands have advice.
func AdviceOn(error) string   { return "" }
func Advised(err error) error { return err }
