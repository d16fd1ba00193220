package cli

// Version is the version of the command. Only main sets it, before anything else.
var Version struct{ Version, Commit string }
