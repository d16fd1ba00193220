package bpf

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
)

// decompress returns an embedded object. Compressed, the four objects take 0.8 MB less of the
// command. Decompressing one takes a tenth of the time of parsing it.
func decompress(object []byte) *bytes.Reader {
	size := binary.LittleEndian.Uint32(object[len(object)-4:])
	out := make([]byte, size)
	in, err := gzip.NewReader(bytes.NewReader(object))
	if err == nil {
		_, err = io.ReadFull(in, out)
	}
	if err != nil {
		panic("bpf: a damaged object: " + err.Error())
	}
	return bytes.NewReader(out)
}
