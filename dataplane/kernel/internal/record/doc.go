// Package record is the description of an attached shaper that is stored beside its program.
package record
