package replay

import "bytes"

// byEditcap is Wireshark's command to convert most formats of captures.
const byEditcap = "editcap -F pcap FILE OUT.pcap"

// foreignFormats are unsupported formats of captures and of compressed files, by their first bytes.
var foreignFormats = []struct{ magic, name, remedy string }{
	{"\x28\xb5\x2f\xfd", "a zstd file", "zstd -dc FILE | shaper ... -"},
	{"\xfd7zXZ\x00", "an xz file", "xz -dc FILE | shaper ... -"},
	{"BZh", "a bzip2 file", "bzip2 -dc FILE | shaper ... -"},
	{"\x04\x22\x4d\x18", "an lz4 file", "lz4 -dc FILE | shaper ... -"},
	{"LZIP", "an lzip file", "lzip -dc FILE | shaper ... -"},
	{"\x1f\x9d", "a compress file", "gzip -dc FILE | shaper ... -"},
	{"PK\x03\x04", "a zip archive", "unzip -p FILE | shaper ... -"},
	{"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x -so FILE | shaper ... -"},

	{"\x34\xcd\xb2\xa1", "modified pcap (Kuznetzov)", byEditcap},
	{"\xa1\xb2\xcd\x34", "modified pcap (Kuznetzov)", byEditcap},
	{"\xac\x01\x00\x1c", "pcap of IXIA", byEditcap},
	{"\x1c\x00\x01\xac", "pcap of IXIA", byEditcap},
	{"\xab\x01\x00\x1c", "pcap of IXIA", byEditcap},
	{"\x1c\x00\x01\xab", "pcap of IXIA", byEditcap},
	{"snoop\x00\x00\x00", "snoop (RFC 1761)", byEditcap},
	{"btsnoop\x00", "btsnoop", byEditcap},
	{"GMBU", "Microsoft Network Monitor 2", byEditcap},
	{"RTSS", "Microsoft Network Monitor 1", byEditcap},
	{"TRSNIFF data    \x1a", "Network General Sniffer", byEditcap},
	{"XCP\x00", "Network Associates Sniffer", byEditcap},
	{"\x05VNF", "Visual Networks", byEditcap},
	{"\xaa\xaa\xaa\xaa", "InfoVista 5View", byEditcap},
	{"iptrace 1.0", "AIX iptrace", byEditcap},
	{"iptrace 2.0", "AIX iptrace", byEditcap},
}

// longestMagic is the number of bytes in the longest magic.
const longestMagic = 17

// foreignFormat returns the name of a file's format by its first bytes, and how to convert it, or "".
func foreignFormat(data []byte) (name, remedy string) {
	for _, f := range foreignFormats {
		if bytes.HasPrefix(data, []byte(f.magic)) {
			return f.name, f.remedy
		}
	}
	return "", ""
}
