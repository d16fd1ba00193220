// Gencaps writes the captures of testdata/pcaps. Its output is reproducible: seeds and
// times are fixed. Addresses are from the documentation ranges (RFC 5737, RFC 3849).
//
//	go run ./dataplane/replay/internal/gencaps -o testdata/pcaps
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// captures lists the files of the directory in the order of its README.
var captures = []struct {
	name string
	make func() []byte
}{
	{"office.pcap", office},
	{"voice-bulk.pcapng", voiceBulk},
	{"bursts.pcap", bursts},
	{"border.pcap", border},
	{"tags.pcap", tags},
	{"edges.pcap", edges},
	{"cooked.pcapng", cooked},
	{"big-endian.pcap", bigEndian},
	{"big-endian.pcapng.gz", bigEndianNG},
	{"back.pcap", back},
}

func main() {
	dir := flag.String("o", "testdata/pcaps", "directory to write to")
	flag.Parse()
	if err := generate(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "gencaps:", err)
		os.Exit(1)
	}
}

func generate(dir string) error {
	for _, c := range captures {
		if err := os.WriteFile(filepath.Join(dir, c.name), c.make(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
