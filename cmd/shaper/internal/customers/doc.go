// Package customers keeps the customers that are added, replaced and removed while a shaper runs, and their
// file. They are on top of those in the file of customers of the policy.
package customers
