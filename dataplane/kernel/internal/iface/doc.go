// Package iface identifies network interfaces independently of their names, and reads their
// properties.
package iface
