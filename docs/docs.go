// Package docs contains the pages of this folder that the command prints: shaper help TOPIC, and
// section 5 of the manual.
package docs

import _ "embed"

// Policy is POLICY.md, the reference of the policy language.
//
//go:embed POLICY.md
var Policy string

// Queues is QUEUES.md, the reference of queues and links.
//
//go:embed QUEUES.md
var Queues string

// Customers is CUSTOMERS.md, the reference of plans and the file of customers.
//
//go:embed CUSTOMERS.md
var Customers string
