package metrics

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// metricsType is the Content-Type of Prometheus' text format.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// metricFamily is a metric. In the text all its samples are in one block.
type metricFamily struct {
	name, help string
	labels     []string
	order      []int // indices of labels in alphabetical order
}

var (
	perShaper = []string{"interface", "direction"}
	perQueue  = with(perShaper, "queue")
	perClass  = with(perShaper, "class")
	perColor  = with(perClass, "color")
	perCause  = with(perColor, "reason")
	perStage  = with(perClass, "stage", "meter")
	perBucket = with(perStage, "bucket")
	perBudget = with(perShaper, "budget")

	perCustomer      = with(perShaper, "customer", "plan")
	perCustomerColor = with(perCustomer, "color")
)

// families lists all metrics in the order of the text.
var (
	families []*metricFamily

	descInfo = describe("shaper_info", "1 for each shaper, with its properties.",
		with(perShaper, "hook", "program_id", "policy", "dry_run"))
	descAttached = describe("shaper_attached",
		"1 if the shaper is attached, 0 while it waits for its interface.", perShaper)
	descEffective = describe("shaper_effective",
		"1 if packets go through the shaper, 0 if something on the interface makes them bypass it.",
		perShaper)
	descUnconfirmed = describe("shaper_unconfirmed",
		"1 if the policy is rolled back unless it is confirmed.", perShaper)
	descChanges = describe("shaper_changes",
		"Changes in force: by users (shaper set and the API), and customers who have used their quota.",
		with(perShaper, "by"))
	descChangesWork = describe("shaper_changes_work",
		"1 if ends of changes, quotas, schedules and state work and are kept, 0 if not: see shaper status.",
		perShaper)
	descAdded    = describe("shaper_added_customers", "Customers added or replaced while the shaper runs.", perShaper)
	descRollback = describe("shaper_rollback_timestamp_seconds",
		"Unix time at which the policy is rolled back, unless it is confirmed before.", perShaper)
	descReload = describe("shaper_last_reload_successful",
		"0 if the process could not reload its policy (SIGHUP, the API) and none was loaded since, otherwise 1.",
		perShaper)
	descLoaded = describe("shaper_policy_loaded_timestamp_seconds", "Unix time at which the policy was loaded.",
		perShaper)
	descOldest = describe("shaper_oldest_change_timestamp_seconds",
		"Unix time of the oldest change by users that is in force.", perShaper)
	descState = describe("shaper_state_saved",
		"1 if quotas and tokens of customers (--state) were saved at the last attempt, 0 if that failed.",
		perShaper)
	descSince = describe("shaper_start_time_seconds", "Unix time at which the shaper was attached.",
		perShaper)
	descPackets = describe("shaper_packets_total", "Packets by color after the meter.", perColor)
	descBytes   = describe("shaper_bytes_total", "Metered bytes by color after the meter.", perColor)
	descDropped = describe("shaper_dropped_packets_total", "Dropped packets by color and reason.",
		perCause)
	descLost = describe("shaper_dropped_bytes_total",
		"Metered bytes of dropped packets by color and reason.", perCause)
	descMarked = describe("shaper_marked_packets_total", "Marked packets by color.", perColor)
	descQueued = describe("shaper_queued_packets_total", "Queued packets by color.", perColor)
	descCE     = describe("shaper_ce_marked_packets_total",
		"Packets in which Congestion Experienced was set (RFC 3168), by color.", perColor)
	descDelay = describe("shaper_queue_delay_seconds",
		"Current queueing delay; not of a queue of a link.", perQueue)
	descBacklog      = describe("shaper_queue_bytes", "Bytes queued now.", perQueue)
	descQdiscDropped = describe("shaper_queue_dropped_packets_total",
		"Packets dropped by the qdisc; also included in shaper_dropped_packets_total.", perQueue)
	descQueueSent      = describe("shaper_queue_sent_packets_total", "Packets sent by HTB.", perQueue)
	descQueueSentBytes = describe("shaper_queue_sent_bytes_total",
		"Bytes sent by HTB, as it counts them.", perQueue)
	descUnclassified = describe("shaper_unclassified_packets_total", "Packets that match no class.",
		perShaper)
	descUnclassifiedBytes = describe("shaper_unclassified_bytes_total",
		"Metered bytes of packets that match no class.", perShaper)
	descLostPackets = describe("shaper_lost_packets_total",
		"Packets that shaper tap lost after the policy had passed them.",
		with(perShaper, "reason"))
	descLostBytes = describe("shaper_lost_bytes_total",
		"Bytes of the frames of these packets; with reason memory, metered bytes.", with(perShaper, "reason"))
	descTokens = describe("shaper_tokens",
		"Tokens in a bucket, or the rest of a limit, in bytes (packets if the meter counts packets).",
		perBucket)
	descBurst = describe("shaper_burst",
		"Size of a bucket, or the limit, in bytes (packets if the meter counts packets).", perBucket)
	descKeys = describe("shaper_keys", "Keys in the per-key table; not counted in the kernel.",
		perStage)
	descEvicted = describe("shaper_keys_evicted_total", "Keys evicted from the per-key table.", perStage)
	descShare   = describe("shaper_budget_share",
		"Rate that this host may use of a budget on a server, in bit/s (eighths of a packet per second if the meter counts packets).",
		with(perBudget, "bucket"))
	descSize = describe("shaper_budget_size",
		"Rate of the whole budget, in the unit of shaper_budget_share.", with(perBudget, "bucket"))
	descBound = describe("shaper_budget_bound",
		"Upper bound of the rate that all hosts of the budget use together now, in the unit of shaper_budget_share.",
		with(perBudget, "bucket"))
	descRescued = describe("shaper_budget_rescued",
		"1 if the host is limited to its rescue share because the server does not answer.", perBudget)
	descHosts = describe("shaper_budget_hosts",
		"Hosts that share the budget, according to the server's last reply.", perBudget)
	descLate = describe("shaper_budget_late_hosts",
		"Hosts of the budget that no longer call the server.", perBudget)
	descCalls     = describe("shaper_budget_calls_total", "Calls to the server for the budget.", perBudget)
	descLostCalls = describe("shaper_budget_lost_calls_total",
		"Calls to the server without an answer in time.", perBudget)
	descSmallest = describe("shaper_budget_smallest",
		"1 if hosts disagree about the budget's size; host has the smallest size, which applies.",
		with(perBudget, "host"))
	descRefused = describe("shaper_keys_refused_total",
		"Packets whose key found no room in the per-key table.", perStage)

	descCustomers        = describe("shaper_customers", "Customers of the policy.", perShaper)
	descCustomersPackets = describe("shaper_customers_packets_total",
		"Packets of all customers by color after the meter, those of removed customers included.",
		with(perShaper, "color"))
	descCustomersBytes = describe("shaper_customers_bytes_total",
		"Metered bytes of all customers by color after the meter.", with(perShaper, "color"))
	descCustomersDropped = describe("shaper_customers_dropped_packets_total",
		"Dropped packets of all customers.", perShaper)
	descCustomersLost = describe("shaper_customers_dropped_bytes_total",
		"Metered bytes of dropped packets of all customers.", perShaper)
	descExported = describe("shaper_customers_exported", "Customers with metrics of their own.",
		perShaper)
	descCustomerPackets = describe("shaper_customer_packets_total",
		"Packets of a customer by color after the meter.", perCustomerColor)
	descCustomerBytes = describe("shaper_customer_bytes_total",
		"Metered bytes of a customer by color after the meter.", perCustomerColor)
	descCustomerDropped = describe("shaper_customer_dropped_packets_total", "Dropped packets of a customer.",
		perCustomer)
	descCustomerLost = describe("shaper_customer_dropped_bytes_total",
		"Metered bytes of dropped packets of a customer.", perCustomer)
)

func with(labels []string, more ...string) []string {
	return slices.Concat(labels, more)
}

func describe(name, help string, labels []string) *metricFamily {
	f := &metricFamily{name: name, help: help, labels: labels}
	for i := range labels {
		f.order = append(f.order, i)
	}
	slices.SortFunc(f.order, func(a, b int) int { return strings.Compare(labels[a], labels[b]) })
	families = append(families, f)
	return f
}

// exposition holds the samples of each family in Prometheus' text format. It replaces Prometheus'
// own library, which for 1,024 classes takes twelve times the CPU time and leaves 75 MB of garbage
// per scrape. Tests check the text with Prometheus' parser.
type exposition map[*metricFamily][]byte

// expose returns the metrics of all shapers, and more.
func expose(shapers []Observation, more ...func(exposition)) []byte {
	samples := exposition{}
	for _, add := range more {
		add(samples)
	}
	for i := range shapers {
		samples.collect(&shapers[i])
	}
	var out []byte
	for i := range shapers {
		if o := &shapers[i]; o.topError != nil {
			out = fmt.Appendf(out, "# %q\n",
				live.Name(&o.About)+": no metrics of single customers: "+o.topError.Error())
		}
	}
	for _, f := range families {
		if len(samples[f]) == 0 {
			continue
		}
		kind := "gauge"
		if strings.HasSuffix(f.name, "_total") {
			kind = "counter"
		}
		out = append(out, "# HELP "+f.name+" "+f.help+"\n# TYPE "+f.name+" "+kind+"\n"...)
		out = append(out, samples[f]...)
	}
	return out
}

// escaper escapes a label's value.
var escaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// begin returns the text of a family with the name and the labels of a new sample.
func (e exposition) begin(f *metricFamily, labels []string) []byte {
	out := append(e[f], f.name...)
	if len(f.labels) == 0 {
		return append(out, ' ')
	}
	sep := byte('{')
	for _, i := range f.order {
		out = append(append(append(out, sep), f.labels[i]...), `="`...)
		out = append(append(out, escaper.Replace(strings.ToValidUTF8(labels[i], "\uFFFD"))...), '"')
		sep = ','
	}
	return append(out, "} "...)
}

// count, gauge and flag add a sample.
func (e exposition) count(f *metricFamily, v int64, labels ...string) {
	e[f] = append(strconv.AppendInt(e.begin(f, labels), v, 10), '\n')
}

func (e exposition) gauge(f *metricFamily, v float64, labels ...string) {
	e[f] = append(strconv.AppendFloat(e.begin(f, labels), v, 'g', -1, 64), '\n')
}

func (e exposition) flag(f *metricFamily, v bool, labels ...string) {
	var n int64
	if v {
		n = 1
	}
	e.count(f, n, labels...)
}

// collect adds the samples of a shaper.
func (e exposition) collect(o *Observation) {
	about := &o.About
	name, direction := about.Interface, about.Direction.String()
	e.flag(descAttached, o.attached, name, direction)
	e.flag(descEffective, o.effective, name, direction)
	e.flag(descUnconfirmed, o.unconfirmed, name, direction)
	e.flag(descReload, !o.ReloadFailed, name, direction)
	if !o.attached {
		return
	}
	if o.unconfirmed {
		e.gauge(descRollback, unixTime(about.Until), name, direction)
	}
	e.gauge(descLoaded, unixTime(about.Loaded), name, direction)
	e.count(descChanges, int64(o.Changes.Users), name, direction, "user")
	e.possible(descChanges, o.ruled, int64(o.Changes.Quotas), name, direction, "quota")
	if !o.Changes.Oldest.IsZero() {
		e.gauge(descOldest, unixTime(o.Changes.Oldest), name, direction)
	}
	if o.State != nil {
		e.flag(descState, *o.State, name, direction)
	}
	if about.Outline.Customers > 0 || o.Changes.Added > 0 {
		e.count(descAdded, int64(o.Changes.Added), name, direction)
	}
	e.flag(descChangesWork, o.Changes.Problem == "", name, direction)
	e.gauge(descInfo, 1, name, direction, live.Hook(about), strconv.Itoa(int(about.Program)), o.name,
		strconv.FormatBool(about.Dry))
	e.gauge(descSince, unixTime(about.Since), name, direction)
	for _, q := range o.sample.Queues {
		onLink := slices.ContainsFunc(about.Outline.Queues, func(of compiled.QueueOutline) bool {
			return of.Name == q.Name && of.Link >= 0
		})
		if !onLink || q.Delay != 0 {
			e.gauge(descDelay, q.Delay.Seconds(), name, direction, q.Name)
		}
		e.count(descBacklog, q.Bytes, name, direction, q.Name)
		e.possible(descQdiscDropped, about.Pacer == kernel.HTB, q.Dropped, name, direction, q.Name)
		if about.Pacer == kernel.HTB {
			e.count(descQueueSent, q.Sent.Packets, name, direction, q.Name)
			e.count(descQueueSentBytes, q.Sent.Bytes, name, direction, q.Name)
		}
	}
	for i := range o.links {
		e.link(o.links, i, name, direction)
	}
	if live.IsTap(about) {
		e.lost(descLostPackets, descLostBytes, &o.lost, name, direction)
	}
	e.classes(o)
	for _, st := range o.Shares {
		e.budget(&st, name, direction, st.Budget)
	}
	e.customers(o, name, direction)
}

// unixTime returns a time as Prometheus writes it.
func unixTime(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// lost adds the samples of packets lost by shaper tap.
func (e exposition) lost(packets, bytes *metricFamily, lost *tap.Lost, labels ...string) {
	for _, n := range []struct {
		dataplane.Count
		reason string
	}{{lost.Refused, "refused"}, {lost.Memory, "memory"}, {lost.Ended, "ended"}} {
		labels := with(labels, n.reason)
		e.count(packets, n.Packets, labels...)
		e.count(bytes, n.Bytes, labels...)
	}
}

// budget adds the samples of a budget on a server.
func (e exposition) budget(st *shared.Status, labels ...string) {
	for i, bucket := range []string{"C", "E"} {
		if st.Size.Rate[i] > 0 {
			e.count(descShare, st.Share.Rate[i], with(labels, bucket)...)
			e.count(descSize, st.Size.Rate[i], with(labels, bucket)...)
			e.count(descBound, st.Bound.Sum.Rate[i], with(labels, bucket)...)
		}
	}
	e.flag(descRescued, st.Rescued, labels...)
	e.count(descHosts, st.Hosts, labels...)
	e.count(descLate, st.Late, labels...)
	e.count(descCalls, int64(st.Calls), labels...)
	e.count(descLostCalls, int64(st.Lost), labels...)
	if st.Smallest != "" {
		e.count(descSmallest, 1, with(labels, st.Smallest)...)
	}
}

// meters adds the samples of the meters of a class.
func (e exposition) meters(o *Observation, class int) {
	plan, now := &o.About.Outline, &o.sample
	for k, i := range plan.Chain(class) {
		m := &plan.Stages[i]
		labels := []string{
			o.About.Interface, o.About.Direction.String(), plan.Classes[class].Name, strconv.Itoa(k), m.Name,
		}
		if m.Keyed() { // a bucket for each key
			if now.Keys != nil { // the kernel does not count them
				e.count(descKeys, int64(now.Keys[i].Keys), labels...)
				e.count(descEvicted, int64(now.Keys[i].Evicted), labels...)
				e.count(descRefused, int64(now.Keys[i].Refused), labels...)
			}
			continue
		}
		for b, bucket := range m.Buckets {
			e.count(descTokens, now.Tokens[i][b], with(labels, bucket.Name)...)
			e.count(descBurst, bucket.Size, with(labels, bucket.Name)...)
		}
	}
}
