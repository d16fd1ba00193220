// Package output writes files as a whole or not at all, and the standard output without
// delaying or losing errors.
package output
