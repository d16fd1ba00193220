package main

// liveCommand is the head of a command that needs Linux. Elsewhere the command only says so.
type liveCommand struct{ use, group, short string } // without a group it is hidden

var (
	runCommand = liveCommand{"run IFACE", "shape", "Shape live traffic on an interface, in the kernel"}
	tapCommand = liveCommand{
		"tap NAME --uplink IFACE", "shape",
		"Shape between a TAP device and an interface, in user space",
	}
	serveCommand = liveCommand{
		"serve [DIR]", "shape",
		"Shape all interfaces that a configuration chooses, in one process",
	}
	reloadCommand = liveCommand{"reload [IFACE]", "shape", "Replace the policy of a running shaper"}
	setCommand    = liveCommand{
		"set IFACE [customer|link|queue NAME CHANGE...]", "shape",
		"Change a customer, link or queue while it is shaped",
	}
	confirmCommand = liveCommand{
		"confirm [IFACE]", "shape",
		"Make a policy applied with --confirm permanent",
	}
	detachCommand = liveCommand{
		"detach [IFACE]", "shape",
		"Detach a running shaper, or clean up after one that died",
	}
	statusCommand = liveCommand{"status [IFACE]", "look", "Show what is attached, and where"}
	statsCommand  = liveCommand{
		"stats [IFACE [CUSTOMER]]", "look",
		"Show counters, rates and tokens of a running shaper",
	}
	budgetCommand = liveCommand{
		"budget", "look",
		"Show and change budgets that hosts share on a server",
	}
	guardCommand = liveCommand{"guard IFACE", "", "Clean up after a shaper run that is killed"}
)

var (
	customerAdd    = liveCommand{"add IFACE NAME COLUMN=VALUE...", "", "Add a customer, or replace one"}
	customerRemove = liveCommand{"remove IFACE NAME...", "", "Remove customers"}
	customerList   = liveCommand{"list IFACE", "", "List customers"}
	customerExport = liveCommand{"export IFACE", "", "Print all customers as a file of customers"}
)
