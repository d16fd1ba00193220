//go:build linux

package nettest

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	ethSSFeatures  = 4  // ETH_SS_FEATURES, linux/ethtool.h
	ethGStringLen  = 32 // ETH_GSTRING_LEN, bytes
	stringsHeader  = 3  // header of struct ethtool_gstrings, 32-bit words
	featuresHeader = 2  // header of struct ethtool_gfeatures and of ethtool_sfeatures, 32-bit words
)

// offloads selects the kernel's features by a short name.
var offloads = map[string]func(string) bool{
	"tso":         func(s string) bool { return strings.HasPrefix(s, "tx-tcp") },
	"gso":         func(s string) bool { return s == "tx-generic-segmentation" },
	"gro":         func(s string) bool { return s == "rx-gro" },
	"tx-checksum": func(s string) bool { return strings.HasPrefix(s, "tx-checksum-") },
}

// Offload turns a feature of a device on or off, like ethtool -K. The feature is "tso",
// "gso", "gro", "tx-checksum", or any full name in the output of ethtool -k, such as
// "tx-udp-segmentation". Without tx-checksum the kernel turns segmentation off too.
func (n *Namespace) Offload(dev, feature string, on bool) {
	n.t.Helper()
	match := offloads[feature]
	if match == nil {
		match = func(s string) bool { return s == feature }
	}
	var names []string
	var before, after []featureBlock
	var err error
	n.Do(func() {
		var fd int
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		defer unix.Close(fd)
		if before, err = getFeatures(fd, dev); err != nil {
			return
		}
		if names, err = featureNames(fd, dev, len(before)); err != nil {
			return
		}
		set := make([]uint32, featuresHeader+2*len(before)) // then {valid, requested} per block
		set[0], set[1] = unix.ETHTOOL_SFEATURES, uint32(len(before))
		for i, name := range names {
			block, bit := i/32, uint32(1)<<(i%32)
			if !match(name) || before[block].available&bit == 0 {
				continue
			}
			set[featuresHeader+2*block] |= bit
			if on {
				set[featuresHeader+2*block+1] |= bit
			}
		}
		if err = ethtool(fd, dev, set); err != nil {
			return
		}
		after, err = getFeatures(fd, dev)
	})
	if err != nil {
		n.t.Fatalf("set feature %s of device %q: %v", feature, dev, err)
	}
	found := false
	for i, name := range names {
		block, bit := i/32, uint32(1)<<(i%32)
		if !match(name) || before[block].available&bit == 0 {
			continue
		}
		found = true
		if active := after[block].active&bit != 0; active != on {
			n.t.Fatalf("set feature %s of device %q: %s is %v after setting it to %v", feature, dev, name,
				active, on)
		}
	}
	if !found {
		n.t.Fatalf("set feature %s of device %q: the device does not have it, or it cannot be changed",
			feature, dev)
	}
}

// featureBlock contains two words of struct ethtool_get_features_block, for 32 features.
type featureBlock struct{ available, active uint32 }

func getFeatures(fd int, dev string) ([]featureBlock, error) {
	size := []uint32{unix.ETHTOOL_GFEATURES, 0}
	if err := ethtool(fd, dev, size); err != nil { // returns the number of blocks
		return nil, err
	}
	blocks := int(size[1])
	// then {available, requested, active, never_changed} per block
	get := make([]uint32, featuresHeader+4*blocks)
	get[0], get[1] = unix.ETHTOOL_GFEATURES, uint32(blocks)
	if err := ethtool(fd, dev, get); err != nil {
		return nil, err
	}
	var features []featureBlock
	for b := range slices.Chunk(get[featuresHeader:], 4) {
		features = append(features, featureBlock{available: b[0], active: b[2]})
	}
	return features, nil
}

// featureNames returns the names of the bits of the feature blocks.
func featureNames(fd int, dev string, blocks int) ([]string, error) {
	data := make([]uint32, stringsHeader+32*blocks*ethGStringLen/4)
	data[0], data[1] = unix.ETHTOOL_GSTRINGS, ethSSFeatures
	if err := ethtool(fd, dev, data); err != nil {
		return nil, err
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&data[stringsHeader])), 4*len(data[stringsHeader:]))
	names := make([]string, min(int(data[2]), 32*blocks))
	for i := range names {
		name, _, _ := bytes.Cut(text[i*ethGStringLen:][:ethGStringLen], []byte{0})
		names[i] = string(name)
	}
	return names, nil
}

// ethtool calls ioctl SIOCETHTOOL with a command and its data, see netdevice(7).
func ethtool(fd int, dev string, command []uint32) error {
	var ifreq struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	if len(dev) >= len(ifreq.name) {
		return unix.EINVAL
	}
	copy(ifreq.name[:], dev)
	ifreq.data = unsafe.Pointer(&command[0])
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&ifreq)))
	runtime.KeepAlive(command)
	if errno != 0 {
		return errno
	}
	return nil
}
