// Package explain replays a capture up to one packet and explains its verdict step by step.
package explain
