// Package serve is shaper serve: one process that shapes all interfaces chosen by a configuration file, those
// that appear later included.
package serve
