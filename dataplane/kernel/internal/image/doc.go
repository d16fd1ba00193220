// Package image encodes a plan in the form read by the programs, and keeps it in maps: it assigns
// slots continuing a previous plan, fills and grows maps, and changes rates, leases and customers
// in them.
package image
