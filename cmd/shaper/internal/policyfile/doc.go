// Package policyfile reads policies from YAML files, with customers from CSV files, and from
// command-line flags into dataplane.Policy. Numbers are exact, and ambiguous units are rejected.
// Every error tells its place: file, line and column, or flag and column.
package policyfile
