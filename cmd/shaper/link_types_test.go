package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// writeCapture writes a pcap file of packets with one second between them.
func writeCapture(t *testing.T, link uint32, packets ...[]byte) string {
	t.Helper()
	le := binary.LittleEndian
	raw := le.AppendUint32(nil, 0xa1b2c3d4)
	raw = append(raw, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0)
	raw = le.AppendUint32(raw, link)
	for i, p := range packets {
		for _, v := range []int{i, 0, len(p), len(p)} {
			raw = le.AppendUint32(raw, uint32(v))
		}
		raw = append(raw, p...)
	}
	path := filepath.Join(t.TempDir(), "capture.pcap")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLinkTypes replays captures of link types with a pseudo-header or another link header, and of one
// that cannot be read: that is an error, unless a class matches its packets as non-IP.
func TestLinkTypes(t *testing.T) {
	ip := append([]byte{
		0x45, 0, 0, 128, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1, 3, 232, 0, 53, 0, 108, 0, 0,
	}, make([]byte, 100)...)
	nflog := slices.Concat([]byte{2, 0, 0, 5, 8, 0, 1, 0, 8, 0, 1, 0, 132, 0, 9, 0}, ip)
	hdlc := slices.Concat([]byte{0x0f, 0, 8, 0}, ip)
	byLength := filepath.Join(t.TempDir(), "length.yaml")
	if err := os.WriteFile(byLength,
		[]byte("classes:\n  - {name: all, match: {length: 1-9000}, meter: {type: gcra, rate: 8kbit, burst: 1000}}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	const meter = "token-bucket rate=8kbit burst=1000"
	known, unknown := writeCapture(t, 239, nflog, nflog, nflog), writeCapture(t, 105, ip, ip, ip)
	for _, test := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"replay", known, "--meter", meter}, cli.ExitDone, "3 packets, 384 bytes metered", ""},
		{[]string{"replay", known, "--meter", meter, "--filter", "udp port 53"}, cli.ExitDone, "3 packets, 384 bytes metered", ""},
		{[]string{"replay", writeCapture(t, 104, hdlc), "--meter", meter}, cli.ExitDone, "1 packets, 128 bytes metered", ""},
		{[]string{"replay", writeCapture(t, 104, hdlc), "--meter", meter, "--length", "l2"}, cli.ExitFailed, "", "link type 104 (C_HDLC) is not Ethernet: use length: l3"},
		{[]string{"why", known, "2", "--meter", meter, "--verbose"}, cli.ExitDone, "headers   link type 228 (IPV4), IPv4 192.0.2.1:1000 > 198.51.100.1:53 udp", ""},
		{[]string{"why", writeCapture(t, 104, hdlc), "1", "--meter", meter, "--verbose"}, cli.ExitDone, "CiscoHDLC", ""},
		{[]string{"replay", unknown, "--meter", meter}, cli.ExitFailed, "", "link type 105 (IEEE802_11) cannot be read: all 3 packets count as non-IP, and no class matches them"},
		{[]string{"compare", unknown, "--rate", "1mbit"}, cli.ExitFailed, "", "link type 105 (IEEE802_11) cannot be read"},
		{[]string{"replay", unknown, "--policy", byLength}, cli.ExitDone, "3 packets, 384 bytes metered", "3 packets (first: 1): link type 105 (IEEE802_11) cannot be read; counted as non-IP"},
	} {
		var out, stderr bytes.Buffer
		if code := run(test.args, cli.Streams{Out: &out, Err: &stderr}); code != test.code ||
			!strings.Contains(out.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
			t.Errorf("%q: exit %d, want %d\n%s%s", test.args, code, test.code, &out, &stderr)
		}
	}
}
