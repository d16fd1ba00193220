// Package record is the description of an attached shaper, stored beside its program.
package record
