//go:build linux && amd64

package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// picture is everything that a shaper can leave at an interface, as the kernel lists it: objects
// by part.
type picture map[string]string

// Parts of a picture.
const (
	partGSO     = "gso"     // GSO limits of the device
	partEgress  = "egress"  // programs and qdiscs
	partIngress = "ingress" // programs and ifb devices
	partClsact  = "clsact"  // qdisc that both directions can need
	partTap     = "tap"     // the device of shaper tap
	partPins    = "pins"    // in the bpffs
	partNotes   = "notes"   // in /run/shaper
	partChanges = "changes" // files of changes in /run/shaper
	partLocks   = "locks"   // in /run/shaper, harmless
)

// lockName matches the names of lock files, changesName those of files of changes.
var (
	lockName    = regexp.MustCompile(`(owner|change|lock)$`)
	changesName = regexp.MustCompile(`changes-\w+$`)
)

// takePicture lists the current state of the interface.
func (w *world) takePicture() picture {
	w.t.Helper()
	p := picture{}
	add := func(part, format string, args ...any) { p[part] += fmt.Sprintf(format, args...) + "; " }
	var err error
	w.inside(func() { err = p.listAll(add) })
	if err != nil {
		w.t.Fatalf("list the state of the interface: %v", err)
	}
	return p
}

// listAll adds all parts.
func (p picture) listAll(add func(part, format string, args ...any)) error {
	links, err := retry(netlink.LinkList)
	if err != nil {
		return err
	}
	index := 0
	for _, l := range links {
		a := l.Attrs()
		switch {
		case a.Name == "v0":
			index = a.Index
			add(partGSO, "%d %d", a.GSOMaxSize, a.GSOIPv4MaxSize)
			if a.Xdp != nil && a.Xdp.Attached {
				add(partIngress, "xdp program")
			}
		case a.Name == tapDevice:
			add(partTap, "device %s", a.Name)
		case a.Name != "lo":
			add(partIngress, "device %s", a.Name)
		}
	}
	v0 := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}
	qdiscs, err := retry(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(v0) })
	if err != nil {
		return err
	}
	for _, q := range qdiscs {
		if q.Type() == "clsact" || q.Type() == "ingress" {
			add(partClsact, "%s", q.Type())
			continue
		}
		add(partEgress, "qdisc %s %x at %x", q.Type(), q.Attrs().Handle, q.Attrs().Parent)
	}
	for part, parent := range map[string]uint32{
		partEgress: netlink.HANDLE_MIN_EGRESS, partIngress: netlink.HANDLE_MIN_INGRESS,
	} {
		filters, err := retry(func() ([]netlink.Filter, error) { return netlink.FilterList(v0, parent) })
		if err != nil && p[partClsact] != "" {
			return err
		}
		for _, f := range filters {
			name := f.Type()
			if b, ok := f.(*netlink.BpfFilter); ok {
				name = fmt.Sprintf("bpf %q", b.Name)
			}
			add(part, "filter %s", name)
		}
	}
	for part, at := range map[string]ebpf.AttachType{
		partEgress: ebpf.AttachTCXEgress, partIngress: ebpf.AttachTCXIngress,
	} {
		r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
		if err != nil {
			continue // no TCX
		}
		for range r.Programs {
			add(part, "tcx program")
		}
	}
	return errors.Join(p.addFiles(add, partPins, "/sys/fs/bpf"), p.addFiles(add, partNotes, "/run/shaper"))
}

// retry repeats a netlink dump that was interrupted.
func retry[T any](list func() ([]T, error)) ([]T, error) {
	out, err := list()
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		out, err = list()
	}
	return out, err
}

// addFiles adds all files of a folder.
func (p picture) addFiles(add func(part, format string, args ...any), part, folder string) error {
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		name, part := strings.TrimPrefix(path, folder+"/"), part
		if part == partNotes && lockName.MatchString(name) {
			part = partLocks
		}
		if part == partNotes && changesName.MatchString(name) {
			part = partChanges
		}
		if info, err := d.Info(); err == nil && info.Size() > 0 {
			name += fmt.Sprintf(" (%d bytes)", info.Size())
		}
		add(part, "%s", name)
		return nil
	})
	return err
}

// differs describes the parts that differ from before.
func (p picture) differs(before picture, parts ...string) []string {
	var out []string
	for _, part := range parts {
		if p[part] != before[part] {
			out = append(out, fmt.Sprintf("%s: %q, was %q", part, p[part], before[part]))
		}
	}
	return out
}

// lasting are the parts other than locks, everything is all parts.
var (
	lasting = []string{
		partGSO, partEgress, partIngress, partClsact, partTap, partPins, partNotes, partChanges,
	}
	everything = append([]string{partLocks}, lasting...)
)

// direction is the direction in which packets are shaped.
type direction int

const (
	egress direction = iota
	ingress
)

func (d direction) String() string { return [...]string{partEgress, partIngress}[d] }

var directions = []direction{egress, ingress}
