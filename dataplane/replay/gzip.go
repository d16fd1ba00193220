package replay

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// stream makes an io.Reader of a window.
type stream struct{ w *window }

func (s *stream) Read(b []byte) (int, error) {
	if err := s.w.need(1); err != nil {
		return 0, err
	}
	n := copy(b, s.w.data)
	s.w.take(n)
	s.w.release()
	return n, nil
}

// unzip decompresses a gzipped stream. It returns gzip errors as gzipError, to
// distinguish them from errors of the source.
type unzip struct {
	from io.Reader
	z    *gzip.Reader
}

// gzipError is an error in the compressed data.
type gzipError struct{ error }

func (u *unzip) Read(b []byte) (n int, err error) {
	if u.z == nil {
		u.z, err = gzip.NewReader(u.from)
	}
	if err == nil {
		n, err = u.z.Read(b)
	}
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) ||
		errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, new(flate.CorruptInputError)) {
		err = &gzipError{fmt.Errorf("gzip: %w", err)}
	}
	return n, err
}
