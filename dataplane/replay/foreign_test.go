package replay

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// checkForeign checks that a file is rejected with the name of its format and a remedy.
func checkForeign(t *testing.T, what string, file []byte, want string) {
	t.Helper()
	_, err := Run(t.Context(), bytes.NewReader(file), transparent(t), Config{})
	var broken *BrokenError
	if !errors.As(err, &broken) || !broken.Unread || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// TestForeignFormats checks the errors for captures in other formats, by their specifications.
func TestForeignFormats(t *testing.T) {
	for _, test := range []struct{ what, head, want string }{
		{"RFC 1761", "snoop\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x04", "this is snoop (RFC 1761): convert it first: editcap -F pcap FILE OUT.pcap"},
		{"RFC 8878", "\x28\xb5\x2f\xfd\x04\x58", "this is a zstd file: convert it first: zstd -dc FILE | shaper ... -"},
		{"modified pcap", "\x34\xcd\xb2\xa1\x02\x00\x04\x00", "this is modified pcap (Kuznetzov)"},
		{"modified pcap, big-endian", "\xa1\xb2\xcd\x34\x00\x02\x00\x04", "this is modified pcap (Kuznetzov)"},
		{"four bytes", "\xa1\xb2\xcd\x34", "this is modified pcap (Kuznetzov)"},
		{"four bytes of snoop", "snoo", "is neither pcap nor pcapng"},
		{"text", "GET / HTTP/1.1\r\n", "47 45 54 20 is neither pcap nor pcapng; other formats: editcap -F pcap FILE OUT.pcap"},
	} {
		checkForeign(t, test.what, []byte(test.head), test.want)
	}
	for i, f := range foreignFormats {
		if len(f.magic) > longestMagic {
			t.Errorf("%s: a magic of %d bytes, more than %d", f.name, len(f.magic), longestMagic)
		}
		for _, other := range foreignFormats[:i] {
			if strings.HasPrefix(f.magic, other.magic) {
				t.Errorf("%s is found as %s", f.name, other.name)
			}
		}
	}
}

// TestForeignFiles checks the names of formats by files that Wireshark and compressors write.
func TestForeignFiles(t *testing.T) {
	const in = "../../testdata/pcaps/bursts.pcap"
	if _, err := exec.LookPath("editcap"); err != nil {
		t.Skip("needs editcap (apt-get install wireshark-common)")
	}
	for format, want := range map[string]string{
		"snoop": "snoop", "modpcap": "modified pcap", "netmon1": "Network Monitor 1", "netmon2": "Network Monitor 2", "visual": "Visual Networks",
		"ngsniffer": "Network General Sniffer", "ngwsniffer_2_0": "Network Associates Sniffer", "5views": "5View",
	} {
		out := filepath.Join(t.TempDir(), "out")
		if text, err := exec.Command("editcap", "-F", format, in, out).CombinedOutput(); err != nil {
			t.Errorf("editcap -F %s: %v: %s", format, err, text)
			continue
		}
		file, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		checkForeign(t, format, file, "this is ")
		checkForeign(t, format, file, want)
	}
	for program, want := range map[string]string{
		"zstd": "a zstd file", "xz": "an xz file", "bzip2": "a bzip2 file", "lz4": "an lz4 file",
	} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Logf("without %s", program)
			continue
		}
		file, err := exec.Command(path, "-c", in).Output()
		if err != nil {
			t.Fatal(program, err)
		}
		checkForeign(t, program, file, want)
	}
}
