// Package policyfile reads policies as people write them, from YAML and from
// one-liners on the command line, into dataplane.Policy. Units are exact and
// ambiguous ones are refused. Every error has its place.
package policyfile
