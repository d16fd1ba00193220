// Package tap is the user-space plane: it forwards frames between a TAP device and an
// interface, or between two TAP devices, and shapes them on the way. The policy and its
// pipeline are those of package dataplane. A timing wheel holds queued packets until a
// precise timer releases them.
//
// Open and OpenUplink open devices. An ActivePolicy is a policy in one direction. A Plane
// connects two devices through Shapers. A Fake is a device made of channels, which needs
// no privilege.
//
// Frames keep the kernel's offloads: a frame whose checksum or segmentation is left to the device
// (struct virtio_net_hdr) is forwarded in one piece and counts as its later segments. Frames stay
// in order within a queue of a device.
package tap
