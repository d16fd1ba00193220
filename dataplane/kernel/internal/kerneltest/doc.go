// Package kerneltest holds helpers for the tests of the kernel plane.
package kerneltest
