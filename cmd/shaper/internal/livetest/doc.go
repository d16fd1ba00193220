// Package livetest tests the command on the real kernel. It has only tests: each makes
// network namespaces of its own, joined by veth pairs, runs the command in one of them,
// and sends packets through what it attached. They need root, iproute2 and, for some,
// /dev/net/tun or a Redis server; what lacks is skipped.
package livetest
