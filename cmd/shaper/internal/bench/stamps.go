package main

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/google/gopacket/pcapgo"
)

// stamps returns the number of packets of a capture, and the times of the first and the last
// one.
func stamps(path string) (n int, first, last time.Duration, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, 0, err
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		return 0, 0, 0, err
	}
	for {
		_, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return n, first, last, nil
		}
		if err != nil {
			return 0, 0, 0, err
		}
		last = time.Duration(info.Timestamp.UnixNano())
		if n == 0 {
			first = last
		}
		n++
	}
}
