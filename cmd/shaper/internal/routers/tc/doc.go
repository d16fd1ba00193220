// Package tc is the dialect of tc (iproute2) for import and export. Import reads a script of tc
// commands, or the traffic control of an interface, which Live writes as such a script:
//
//	shell.go    a script: variables, quotes, lines
//	objects.go  commands: qdiscs, classes and filters, as tc reads them
//	rules.go    filters to classes of a policy
//	queues.go   qdiscs to queues
//	htb.go      trees of HTB classes to links and queues
//	export.go   a policy to a script
//	live_*.go   an interface, by netlink
package tc
