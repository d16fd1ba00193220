package main

// reasons says why figures do not reach their bar or aim, by their names.
var reasons = map[string]string{}
