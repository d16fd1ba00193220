// Package chaos tests the command under faults, on the real kernel. It has only
// tests. A command is killed before each system call that reads or changes
// something outside the process, and each of these calls fails once; commands
// are also killed at random moments. After each fault the interface must be
// whole or shaping, shaper status must be right, and one shaper detach must
// leave nothing.
//
// go test runs a sample, the same each time. make chaos runs all, in an order of
// its own that it logs the seed of.
// These variables of the environment choose:
//
//	SHAPER_CHAOS=all        every fault, and 1,000 random kills
//	SHAPER_CHAOS=kills      the random kills alone
//	SHAPER_CHAOS_SEED=N     the sample's seed
//	SHAPER_CHAOS_ONLY=NAME  scenarios whose names contain this, or one case,
//	                        SCENARIO/FAULT as failures are printed
//	SHAPER_CHAOS_BUDGET=30s time, after which no more faults begin
//	SHAPER_CHAOS_KILLS=N    random kills
//	SHAPER_CHAOS_WORKERS=N  cases at once
//	SHAPER_CHAOS_COMMAND=F  test this build of the command
package chaos
