package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
)

// classifier is a tc filter of any kind.
type classifier struct {
	kind     string
	priority uint16
	handle   uint32
}

func (c classifier) String() string { return fmt.Sprintf("tc filter %s pref %d", c.kind, c.priority) }

// redirects says whether it is our filter that redirects to an ifb, by its place and
// number: older versions had two.
func (c classifier) redirects() bool {
	number := c.handle & 0xfff
	return c.kind == "u32" && c.priority == ifbPriority && (number == ifbFilter || number == ifbFilter+1)
}

// classifiers are the filters of one direction that every packet begins with,
// those of chain 0, first to run first.
func classifiers(index int, parent uint32) ([]classifier, error) {
	var list [][]byte
	var err error = netlink.ErrDumpInterrupted
	for errors.Is(err, netlink.ErrDumpInterrupted) { // something else was changed
		r := nl.NewNetlinkRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
		r.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: parent})
		list, err = r.Execute(unix.NETLINK_ROUTE, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("list tc filters: %w", err)
	}
	var out []classifier
	for _, b := range list {
		m := nl.DeserializeTcMsg(b)
		attrs, err := qdisc.Attributes(b[nl.SizeofTcMsg:])
		if err != nil {
			return nil, err
		}
		if chain := attrs[nl.TCA_CHAIN]; len(chain) >= 4 && binary.NativeEndian.Uint32(chain) != 0 {
			continue
		}
		kind, _, _ := bytes.Cut(attrs[nl.TCA_KIND], []byte{0})
		c := classifier{string(kind), uint16(m.Info >> 16), m.Handle}
		if c.handle == 0 || c.kind == "u32" && c.handle&0xfff == 0 {
			continue // the head of a list, or a hash table of u32
		}
		out = append(out, c)
	}
	return out, nil
}
