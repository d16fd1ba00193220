package main

import (
	"io"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// printer prints descriptions of shapers.
type printer struct{ *say.Printer }

func newPrinter(w io.Writer) *printer { return &printer{&say.Printer{W: w}} }
