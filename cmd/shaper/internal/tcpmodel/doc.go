// Package tcpmodel computes the throughput of TCP through a policer or a queue. It simulates
// every packet, in virtual time: the bottleneck is the same meter or queue as in a policy, and
// the senders and receivers behave like those of Linux 6.x. Nothing is random, so the
// same Path and Bottleneck always give the same Result.
//
// Senders always have data to send, and share a Line to the bottleneck. The bottleneck drops
// packets; otherwise the path loses and reorders nothing, and acknowledgments are never lost. The
// model implements, from these sources:
//
//   - Reno: slow start and congestion avoidance, RFC 5681
//   - CUBIC: RFC 9438, with fast convergence and, as in Linux, a Reno-friendly region whose
//     growth does not change at the previous maximum; slow start ends by HyStart (Ha and Rhee,
//     "Taming the elephants: New TCP slow start", Computer Networks 55, 2011) with Linux's limits
//   - initial window of 10 segments: RFC 6928
//   - loss detection: selective acknowledgments of all segments (RFC 2018), RACK-TLP (RFC 8985)
//   - recovery: proportional rate reduction, RFC 6937, with the slow-start bound if an
//     acknowledgment makes progress and reports no loss, otherwise the conservative bound
//   - retransmission timeout: RFC 6298 with the minimum of Linux, 200 ms above the RTT
//   - delayed acknowledgments: RFC 1122 §4.2.3.2, every second segment; the first 16 segments and
//     those that fill a gap are acknowledged at once; segments that arrive within 20 µs share an
//     acknowledgment (receive offload). While segments are missing, acknowledgments
//     are sent at most every ms or RTT/20, after the first three (Linux, tcp_comp_sack_delay_ns)
//   - segmentation: a sender collects about 1 ms of data before it sends
//     (Linux, tcp_tso_win_divisor and automatic TSO sizes), so packets depart in short bursts
//     even if no interface has TSO
//
// BBR is not supported. See docs/PLANNING.md for a comparison with real TCP.
package tcpmodel
