// Package compiled holds policies as planes run them: a [Plan] lists each part of a
// [dataplane.Policy] by index, with defaults filled in and limits resolved. The pipeline and the
// kernel plane run plans, and tools read them. A program for processing packets only calls
// pipeline.New, and needs none of this.
//
//   - [Compile] checks a policy and returns its plan. [Plan.For] chooses the direction of an interface.
//   - [Class], [Stage], [Action], [Queue] and [Link] are the parts of a plan. The Source of each is
//     the part of the policy from which it was compiled.
//   - A [Classifier] finds the class of a packet; [Tables] are the same for a plane in another language.
//   - [Customers] finds the customer of a packet, and its [Service].
//   - An [Outline] contains names and sizes alone, as plain data, for readers of a shaper's counters.
//   - [Plan.Succeed] decides on a reload which part continues which; [Plan.WithRates] and [Plan.WithServices]
//     return a plan with other rates, or other services of some customers.
//   - A [Lease] limits a meter whose budget is on a server.
package compiled
