// Package tap is the plane in user space: it carries frames between a TAP
// device and an interface, or between two TAP devices, and shapes them on the
// way. The policy and its pipeline are those of package dataplane; packets that
// a queue holds wait in a timing wheel until a precise timer lets them go.
//
// Open and OpenUplink open devices, a Shaper is a policy in one direction, a
// Plane puts them together. A Fake is a device of channels, which needs no
// privilege.
//
// Frames keep the offloads of the kernel: one that is still to be summed or cut
// (struct virtio_net_hdr) passes in one piece, and counts as what it will be cut
// into. Frames are carried in order within a queue of a device.
package tap
