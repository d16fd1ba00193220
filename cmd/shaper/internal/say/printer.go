package say

import (
	"encoding/json"
	"fmt"
	"io"
)

// Printer prints to W until a write fails, and keeps that error.
type Printer struct {
	W   io.Writer
	Err error
}

// NewPrinter returns a printer to w.
func NewPrinter(w io.Writer) *Printer { return &Printer{W: w} }

// Printf prints unless an earlier write failed.
func (p *Printer) Printf(format string, args ...any) {
	if p.Err == nil {
		_, p.Err = fmt.Fprintf(p.W, format, args...)
	}
}

// WriteJSON writes a value as JSON on one line.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
