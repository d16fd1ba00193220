// Package livetest tests the command on the real kernel. It consists of tests only. Each test
// creates its own network namespaces, connected by veth pairs, runs the command in one of them and
// sends packets through the attached shaper. The tests need root and iproute2; some need
// /dev/net/tun or a Redis server. Tests without their requirements are skipped.
package livetest
