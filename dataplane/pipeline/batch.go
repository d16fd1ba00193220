package pipeline

import "github.com/a-seed-32e5a53f/shaper/dataplane"

// batchSize is the number of packets classified by ProcessBatch before it meters them.
const batchSize = 32

// ProcessBatch is Process for each packet in order, with the verdict of the same index. There must
// be at least as many verdicts as packets, and packets must not share Data. It is faster than
// Process if there are many customers, or a meter with many keys: the cache misses of their tokens
// overlap.
func (l *Pipeline) ProcessBatch(packets []dataplane.Packet, verdicts []dataplane.Verdict) {
	l.processBatch(packets, verdicts, false)
}

// ProcessParsed is ProcessBatch for packets of which some are parsed. It parses the others: see
// Packet.Parsed.
func (l *Pipeline) ProcessParsed(packets []dataplane.Packet, verdicts []dataplane.Verdict) {
	l.processBatch(packets, verdicts, true)
}

// processBatch is ProcessBatch, or ProcessParsed if it must trust Packet.Parsed.
func (l *Pipeline) processBatch(packets []dataplane.Packet, verdicts []dataplane.Verdict, trust bool) {
	verdicts = verdicts[:len(packets)]
	for len(packets) > 0 {
		n := min(len(packets), batchSize)
		for i := range n {
			if p := &packets[i]; !trust || !p.Parsed {
				dataplane.Parse(p)
			}
		}
		l.processParsed(packets[:n], verdicts)
		packets, verdicts = packets[n:], verdicts[n:]
	}
}

// processParsed classifies and meters at most batchSize parsed packets.
func (l *Pipeline) processParsed(packets []dataplane.Packet, verdicts []dataplane.Verdict) {
	if l.customers == nil {
		for i := range packets {
			l.classify(&packets[i], &verdicts[i])
		}
	} else {
		l.classifyCustomers(packets, verdicts)
	}
	if l.tables != nil {
		l.prefetch(packets, verdicts)
	}
	for i := range packets {
		l.decide(&packets[i], &verdicts[i])
	}
}

// classifyCustomers is classify for a batch, for a policy with customers. The short loops let the
// cache misses of several packets overlap.
func (l *Pipeline) classifyCustomers(packets []dataplane.Packet, verdicts []dataplane.Verdict) {
	for i := range packets {
		packets[i].Direction = l.plan.Direction
		packets[i].Customer = l.plan.Customers.CustomerOf(&packets[i])
	}
	for i := range packets {
		if n := packets[i].Customer; n != 0 {
			l.customers.prefetch(n)
		}
	}
	for i := range packets {
		l.findClass(&packets[i], &verdicts[i])
	}
}

// findTables finds the first table of keys of each class.
func (l *Pipeline) findTables() {
	for i := range l.plan.Classes {
		stage := l.plan.Classes[i].Stage
		for stage >= 0 && l.stages[stage].keyed == nil {
			stage = l.plan.Stages[stage].Then
		}
		if stage < 0 {
			continue
		}
		if l.tables == nil {
			l.tables = make([]*keyTable, len(l.plan.Classes))
		}
		l.tables[i] = l.stages[stage].keyed
	}
}

// prefetch loads the memory of the keys of classified packets.
func (l *Pipeline) prefetch(packets []dataplane.Packet, verdicts []dataplane.Verdict) {
	var used [batchSize]*keyTable
	n := 0
	for i := range packets {
		class := verdicts[i].Class
		if class < 0 || l.tables[class] == nil {
			continue
		}
		if t := l.tables[class]; t.prefetchLater(&packets[i]) {
			used[n] = t
			n++
		}
	}
	for _, t := range used[:n] {
		t.prefetch()
	}
}
