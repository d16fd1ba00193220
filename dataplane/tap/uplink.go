package tap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	batchLen     = 64       // frames per system call
	socketBuffer = 16 << 20 // bytes, by the kernel's accounting
	downCheck    = 100e6    // ns between checks whether a down device still exists
)

// OpenUplink opens an existing interface with one packet socket (packet(7)) per queue; 0 queues
// means 1. Received packets are delivered; those sent by other programs are not. The interface is
// looked up in the network namespace of the calling thread. OpenUplink needs CAP_NET_RAW and
// CAP_NET_ADMIN.
//
// The ports read copies, and the host still receives its own packets. So the interface should have
// no addresses and no other use. VLAN tags removed by the kernel are inserted again, and the
// offsets in the virtio header adjusted.
func OpenUplink(name string, queues int) (*Interface, error) {
	i, err := openUplink(name, queues)
	if err != nil {
		return nil, fmt.Errorf("open uplink %q: %w", name, err)
	}
	return i, nil
}

func openUplink(name string, queues int) (_ *Interface, err error) {
	if queues, err = queueCount(queues); err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, errors.New("no such interface")
	}
	if err != nil {
		return nil, fmt.Errorf("look it up: %w", err)
	}
	if encap := link.Attrs().EncapType; encap != "ether" {
		return nil, fmt.Errorf("its link layer is %s, not Ethernet", encap)
	}
	i := &Interface{name: name}
	defer func() {
		if err != nil {
			_ = i.Close() // only err matters
		}
	}()
	group := 0
	for range queues {
		p, err := openSocket(link.Attrs().Index)
		if err != nil {
			return nil, err
		}
		i.ports = append(i.ports, p)
		if queues > 1 {
			if group, err = joinGroup(p.fd, group); err != nil {
				return nil, err
			}
		}
	}
	for _, p := range i.ports {
		if err := setFilter(p.(*socketPort).fd, acceptIncoming); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// option is a socket option of a packet socket. PACKET_QDISC_BYPASS is not used. Without the qdisc,
// the kernel drops GSO frames that the device cannot split itself, and all frames while the
// device's ring is full.
type option struct {
	name  string
	level int
	id    int
	value int
}

var options = []option{
	{"SO_RCVBUFFORCE", unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer},
	{"SO_SNDBUFFORCE", unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer},
	{"PACKET_VNET_HDR", unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1},
	{"PACKET_AUXDATA", unix.SOL_PACKET, unix.PACKET_AUXDATA, 1},
	{"PACKET_IGNORE_OUTGOING", unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1}, // Linux 4.20
}

// packetType is the offset at which a filter loads the packet type: SKF_AD_OFF
// + SKF_AD_PKTTYPE of linux/filter.h.
const packetType = 1<<32 - 0x1000 + 4

// Filters of packet sockets. A socket accepts no frames until all have joined
// their group, because it would receive frames of the other sockets. Linux 6.1
// passes outgoing frames to a group, even segments of the group's own frames,
// so a filter rejects them.
var (
	rejectAll      = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	acceptIncoming = []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: packetType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PACKET_OUTGOING, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K},
		{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32}, // accept all bytes
	}
)

// setFilter replaces the filter of a socket.
func setFilter(fd int, f []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return fmt.Errorf("SO_ATTACH_FILTER: %w", err)
	}
	return nil
}

// openSocket opens a packet socket, not yet accepting frames.
func openSocket(index int) (_ *socketPort, err error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("packet socket: %w: run as root, or with CAP_NET_RAW and CAP_NET_ADMIN", err)
	}
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	for _, o := range options {
		err := unix.SetsockoptInt(fd, o.level, o.id, o.value)
		if errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("%s: %w: run as root, or with CAP_NET_ADMIN", o.name, err)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.name, err)
		}
	}
	if err := setFilter(fd, rejectAll); err != nil {
		return nil, err
	}
	promiscuous := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
		&promiscuous); err != nil {
		return nil, fmt.Errorf("PACKET_ADD_MEMBERSHIP: %w", err)
	}
	if err := unix.Bind(fd,
		&unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: index}); err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	p := &socketPort{fd: fd}
	if err := p.open(fd); err != nil {
		return nil, err
	}
	p.in.init()
	p.out.init()
	for i := range p.notes {
		p.in.messages[i].Hdr.Control = (*byte)(unsafe.Pointer(&p.notes[i]))
	}
	return p, nil
}

// joinGroup adds a socket to the fanout group over which the kernel distributes received frames, by
// a flow hash equal for both directions. Group 0 creates a group. PACKET_IGNORE_OUTGOING of its
// sockets does not apply to a group.
func joinGroup(fd, group int) (int, error) {
	mode := unix.PACKET_FANOUT_HASH | unix.PACKET_FANOUT_FLAG_IGNORE_OUTGOING
	if group == 0 {
		mode |= unix.PACKET_FANOUT_FLAG_UNIQUEID
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_FANOUT, mode<<16|group); err != nil {
		return 0, fmt.Errorf("PACKET_FANOUT: %w", err)
	}
	id, err := unix.GetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_FANOUT)
	if err != nil {
		return 0, fmt.Errorf("PACKET_FANOUT: %w", err)
	}
	return id & 0xffff, nil
}

// networkOrder is htons.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// auxdata is the control message of a received frame, PACKET_AUXDATA.
type auxdata struct {
	unix.Cmsghdr
	unix.TpacketAuxdata
}

// tag returns the VLAN tag removed from the frame by the kernel.
func (n *auxdata) tag() (tpid, tci uint16, ok bool) {
	if n.Level != unix.SOL_PACKET || n.Type != unix.PACKET_AUXDATA ||
		n.Status&unix.TP_STATUS_VLAN_VALID == 0 {
		return 0, 0, false
	}
	if n.Status&unix.TP_STATUS_VLAN_TPID_VALID == 0 {
		return unix.ETH_P_8021Q, n.Vlan_tci, true
	}
	return n.Vlan_tpid, n.Vlan_tci, true
}

// batch is the argument of recvmmsg(2) and sendmmsg(2).
type batch struct {
	messages [batchLen]unix.Mmsghdr
	buffers  [batchLen]unix.Iovec
}

func (b *batch) init() {
	for i := range b.messages {
		b.messages[i].Hdr.Iov = &b.buffers[i]
		b.messages[i].Hdr.SetIovlen(1)
	}
}

// call makes a system call for the first n messages. It never blocks, so it
// bypasses the Go scheduler.
func (b *batch) call(trap uintptr, fd, n int) (int, error) {
	done, _, errno := unix.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&b.messages)), uintptr(n),
		unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(done), nil
}

// socketPort is a packet socket.
type socketPort struct {
	waiter
	fd      int
	down    bool // as seen by the last Read
	in, out batch
	notes   [batchLen]auxdata // of in
}

func (p *socketPort) Read(into [][]byte) (int, error) {
	n := 0
	for n < len(into) {
		rest := into[n:min(len(into), n+batchLen)]
		for i, b := range rest {
			p.in.buffers[i].Base = unsafe.SliceData(b)
			p.in.buffers[i].SetLen(max(cap(b)-tagLen, 0))
			p.in.messages[i].Hdr.SetControllen(int(unsafe.Sizeof(auxdata{})))
		}
		got, err := p.in.call(unix.SYS_RECVMMSG, p.fd, len(rest))
		switch {
		case err == nil:
		case errors.Is(err, unix.EAGAIN):
			return n, nil
		case errors.Is(err, unix.EINVAL): // no virtio header can describe the frame: lost
			return n, nil
		case p.gone():
			return n, ErrGone
		case errors.Is(err, unix.ENETDOWN):
			p.down = true
			return n, nil
		default:
			return n, fmt.Errorf("recvmmsg: %w", err)
		}
		p.down = false
		for i := range got {
			m := &p.in.messages[i]
			if m.Hdr.Flags&unix.MSG_TRUNC != 0 {
				continue
			}
			b := rest[i][:m.Len]
			if tpid, tci, ok := p.notes[i].tag(); ok {
				b = pushTag(b, tpid, tci)
			}
			// swapped in this order: if no frame was truncated, both are the same element
			rest[i], into[n] = into[n], b
			n++
		}
		if got < len(rest) {
			break
		}
	}
	return n, nil
}

func (p *socketPort) Write(frames [][]byte) (int, error) {
	sent := 0
	for len(frames) > 0 {
		some := frames[:min(len(frames), batchLen)]
		for i, b := range some {
			p.out.buffers[i].Base = unsafe.SliceData(b)
			p.out.buffers[i].SetLen(len(b))
		}
		n, err := p.out.call(unix.SYS_SENDMMSG, p.fd, len(some))
		if errors.Is(err, unix.ENETDOWN) { // the kernel reports it once more when the device is up again
			n, err = p.out.call(unix.SYS_SENDMMSG, p.fd, len(some))
		}
		if err != nil {
			// ENOBUFS, EAGAIN: full; EMSGSIZE: too long; ENETDOWN: down;
			// EINVAL: too short, or the virtio header is inconsistent
			if p.gone() {
				return sent, ErrGone
			}
			frames[0] = frames[0][:0]
			frames = frames[1:]
			continue
		}
		sent += n
		frames = frames[n:]
	}
	return sent, nil
}

func (p *socketPort) Wait(deadline int64) error {
	if p.down { // the kernel does not report the removal of a down device
		deadline = min(deadline, Now()+downCheck)
	}
	events, err := p.wait(deadline)
	if (p.down || events&unix.EPOLLERR != 0) && p.gone() {
		return ErrGone
	}
	return err
}

// gone reports whether the device was deleted or moved to another network
// namespace. Then the socket is bound to no interface.
func (p *socketPort) gone() bool {
	var address unix.RawSockaddrLinklayer // unix.Getsockname would allocate an address
	size := uint32(unsafe.Sizeof(address))
	_, _, errno := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(p.fd), uintptr(unsafe.Pointer(&address)),
		uintptr(unsafe.Pointer(&size)))
	return errno == 0 && address.Ifindex <= 0
}

func (p *socketPort) close() error { return errors.Join(unix.Close(p.fd), p.waiter.close()) }
