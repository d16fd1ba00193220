// Package chaos tests the command under faults, on the real kernel. It contains only tests.
//
// The tests kill the command before each system call reading or changing something outside the
// process. They also make each of these calls fail once, and kill commands at random moments. After
// each fault the interface must either shape or be as before, shaper status must be correct, and
// one shaper detach must remove everything. The list of changes by shaper set must match the rates
// in force. Changes must end and quotas must apply even if the directory of their file is damaged.
//
// go test runs a sample, the same each time. make chaos runs all cases in a random order, and
// logs its seed. These environment variables select cases:
//
//	SHAPER_CHAOS=more       a larger sample
//	SHAPER_CHAOS=all        every fault, and 1,000 random kills
//	SHAPER_CHAOS=kills      random kills only
//	SHAPER_CHAOS_SEED=N     seed of the sample, or of the order
//	SHAPER_CHAOS_ONLY=NAME  scenarios whose names match the regular expression NAME, or a
//	                        single case, SCENARIO/FAULT, as in the output of a failure
//	SHAPER_CHAOS_BUDGET=30s time after which no more cases are started
//	SHAPER_CHAOS_KILLS=N    number of random kills
//	SHAPER_CHAOS_WORKERS=N  number of cases run in parallel
//	SHAPER_CHAOS_COMMAND=F  test this build of the command
package chaos
