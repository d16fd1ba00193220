package say

import (
	"encoding/json"
	"fmt"
	"io"
)

// Printer keeps the first error of many writes.
type Printer struct {
	W   io.Writer
	Err error
}

// Printf prints, unless there was an error.
func (p *Printer) Printf(format string, args ...any) {
	if p.Err == nil {
		_, p.Err = fmt.Fprintf(p.W, format, args...)
	}
}

// WriteJSON writes a value on one line.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
