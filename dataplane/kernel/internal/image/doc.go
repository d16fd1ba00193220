// Package image encodes a plan in the form that the programs read, and keeps it in maps: it
// assigns slots that continue a previous plan, fills and grows maps, and changes rates, leases and
// customers in them.
package image
