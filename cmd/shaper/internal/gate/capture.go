package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Names of the captures.
const (
	imixName  = "imix.pcap"
	smallName = "small.pcap"
)

// writeCaptures writes the captures and the policy of the figures. They are the same each time: UDP
// packets of 65,536 sources, at 3 Gbit/s.
func writeCaptures(dir string, packets int) error {
	imix := []int{64, 64, 64, 64, 64, 64, 64, 594, 594, 594, 594, 1518} // 7:4:1
	return errors.Join(
		writeCapture(filepath.Join(dir, imixName), packets, imix),
		writeCapture(filepath.Join(dir, smallName), 2*packets, []int{64}),
		os.WriteFile(filepath.Join(dir, "keys.yaml"), []byte(keyPolicy), 0o600),
	)
}

const (
	nsMagic      = 0xa1b23c4d // pcap with ns
	rate         = 3e9        // bit/s
	wireOverhead = 4          // FCS, which captures lack
)

// writeCapture writes packets whose lengths with FCS are chosen from sizes at random.
func writeCapture(path string, packets int, sizes []int) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	out, r, order := bufio.NewWriterSize(file, 1<<16), rand.New(rand.NewPCG(30, 0)), binary.LittleEndian
	header := order.AppendUint32(nil, nsMagic)
	header = order.AppendUint16(header, 2)
	header = order.AppendUint16(header, 4)
	header = append(header, make([]byte, 8)...)
	header = order.AppendUint32(header, 65535)
	header = order.AppendUint32(header, 1) // Ethernet
	if _, err := out.Write(header); err != nil {
		return err
	}
	record := make([]byte, 16+1518)
	frame := record[16:]
	copy(frame,
		"\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x08\x00\x45\x00\x00\x00\x00\x00\x40\x00\x40\x11\x00\x00\x0a\x00\x00\x00\x0a\x01\x00\x01")
	binary.BigEndian.PutUint16(frame[34:], 5000)
	binary.BigEndian.PutUint16(frame[36:], 5001)
	for ns := int64(1_700_000_000_000_000_000); packets > 0; packets-- {
		wire := sizes[r.IntN(len(sizes))]
		n := wire - wireOverhead
		order.PutUint32(record, uint32(ns/1e9))
		order.PutUint32(record[4:], uint32(ns%1e9))
		order.PutUint32(record[8:], uint32(n))
		order.PutUint32(record[12:], uint32(n))
		binary.BigEndian.PutUint16(frame[16:], uint16(n-14))
		binary.BigEndian.PutUint16(frame[28:], uint16(r.Uint32())) // of the source address
		binary.BigEndian.PutUint16(frame[24:], 0)
		binary.BigEndian.PutUint16(frame[24:], checksum(frame[14:34]))
		binary.BigEndian.PutUint16(frame[38:], uint16(n-34))
		if _, err := out.Write(record[:16+n]); err != nil {
			return err
		}
		ns += int64(float64(wire) * 8e9 / rate)
	}
	return errors.Join(out.Flush(), file.Close())
}

// checksum returns the Internet checksum of a header.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
