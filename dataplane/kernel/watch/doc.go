// Package watch announces changes of the interfaces of shapers.
package watch
