package oracle

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/pcapgo"
)

// TestAgainstPcapgo compares with pcapgo, for the captures that it supports.
func TestAgainstPcapgo(t *testing.T) {
	for _, row := range captureIndex(t) {
		t.Run(row["file"], func(t *testing.T) {
			path := filepath.Join(sharedCaptures, row["file"])
			packets, err := readCapture(path)
			if err != nil {
				t.Fatal(err)
			}
			r, err := pcapgoReader(path, row["format"])
			if err != nil {
				t.Skipf("pcapgo: %v", err)
			}
			for i, p := range packets {
				data, info, err := r.ReadPacketData()
				if err != nil {
					t.Skipf("pcapgo stops at packet %d: %v", i+1, err)
				}
				if !bytes.Equal(data, p.data) || int64(info.Length) != p.wire {
					t.Fatalf("packet %d: got %d of %d bytes, want %d of %d as by pcapgo", i+1, len(p.data),
						p.wire, len(data), info.Length)
				}
				// A simple packet block has no time; pcapgo returns zero.
				if !info.Timestamp.IsZero() && p.time.Cmp(big.NewInt(info.Timestamp.UnixNano())) != 0 {
					t.Errorf("packet %d: got timestamp %s, want %d as by pcapgo", i+1, p.time,
						info.Timestamp.UnixNano())
				}
			}
			if _, _, err := r.ReadPacketData(); !errors.Is(err, io.EOF) {
				t.Errorf("after the last packet: got %v, want io.EOF", err)
			}
		})
	}
}

func pcapgoReader(path, format string) (gopacket.PacketDataSource, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r io.Reader = bytes.NewReader(data)
	if strings.HasSuffix(format, "gz") {
		if r, err = gzip.NewReader(r); err != nil {
			return nil, err
		}
	}
	if strings.HasPrefix(format, "pcapng") {
		return pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	}
	return pcapgo.NewReader(r)
}
