// Package remedy names the advice that avoids an error of the kernel plane or repairs a problem.
package remedy
