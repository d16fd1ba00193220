// Package control serves the API of a running shaper: JSON over HTTP on unix sockets, whose file
// permissions decide who may read and who may change it. docs/API.md describes the API.
package control
