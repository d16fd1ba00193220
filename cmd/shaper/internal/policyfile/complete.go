package policyfile

// MeterTypes returns the names of all meter types, sorted.
func MeterTypes() []string { return sorted(meterTypes) }
