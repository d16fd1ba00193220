package policyfile

// MeterTypes returns the words that type: takes in a meter, sorted.
func MeterTypes() []string { return sorted(meterTypes) }
