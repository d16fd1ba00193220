// Package explain replays a capture up to one packet and explains that packet's verdict step
// by step.
package explain
