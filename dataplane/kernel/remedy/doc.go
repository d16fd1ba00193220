// Package remedy names the advice for avoiding an error of the kernel plane or repairing a problem.
package remedy
