package report

import (
	"math/rand/v2"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const (
	second     = int64(1e9)
	sampleBins = 300
	sampleBin  = second / 10
)

// sample is 30 s of voice through a token bucket, bursty video through an
// srTCM that drops red, and bulk through a shaper, with some ARP beside them.
func sample() Data {
	d := Data{
		Input: "office-uplink.pcapng", Policy: "uplink.toml", Version: "1.0.0",
		Start: 1_772_366_400_123_456_000, BinWidth: sampleBin, Unmetered: make([]int64, sampleBins),
		Warnings: []string{
			"packet 4,711: the stamp goes back by 3.2 ms",
			"212 packets were cut by the snap length; their length is that of the wire",
		},
	}
	for i := range d.Offered {
		d.Offered[i] = make([]int64, sampleBins)
		d.Passed[i] = make([]int64, sampleBins)
	}
	voice := newSampleBucket("Tc", 1_000_000, 4_000)
	video := newSampleBucket("Tc", 6_000_000, 150_000)
	excess := newSampleBucket("Te", 0, 300_000)
	delay, waiting := noBins(), make([]int64, sampleBins)
	classes := []Class{
		{Name: "voice", Meter: "tokenbucket 1mbit/s burst=4kB"},
		{Name: "video", Meter: "srtcm cir=6mbit/s cbs=150kB ebs=300kB"},
		{Name: "bulk"},
		{Name: "-"},
	}
	add := func(c *dataplane.Count, n int64) { *c = c.Plus(dataplane.Count{Packets: 1, Bytes: n}) }
	took := func(c *Class, color int, at, n int64) {
		add([]*dataplane.Count{&c.Green, &c.Yellow, &c.Red}[color], n)
		d.Offered[color][at/sampleBin] += n
	}
	left := func(color int, at, n int64) {
		if bin := at / sampleBin; bin < sampleBins {
			d.Passed[color][bin] += n
		}
	}

	rng := rand.New(rand.NewPCG(1, 2))
	var free int64 // time at which the backlog of bulk is sent
	const end = sampleBins * sampleBin
	for at := int64(0); at < end; at += second / 2000 {
		phase := float64(at) / float64(end)
		burst := at/(second*5/4)%4 == 1
		if phase < 0.8 && rng.Float64() < 0.1 { // voice
			n := 120 + rng.Int64N(200)
			color := 2
			if voice.takeBytes(at, n) {
				color = 0
			}
			took(&classes[0], color, at, n)
			left(color, at, n)
		}
		rate := 0.2
		if burst {
			rate = 0.75
		}
		if rng.Float64() < rate { // video
			n := 900 + rng.Int64N(600)
			excess.level = min(excess.size, excess.level+video.spill(at))
			excess.seeTime(at)
			switch {
			case video.takeBytes(at, n):
				took(&classes[1], 0, at, n)
				left(0, at, n)
			case excess.takeBytes(at, n):
				took(&classes[1], 1, at, n)
				add(&classes[1].Marked, n)
				left(1, at, n)
			default:
				took(&classes[1], 2, at, n)
				add(&classes[1].Dropped, n)
			}
		}
		if phase > 0.3 && phase < 0.7 && rng.Float64() < 0.2*(1-phase)+0.05 { // bulk
			took(&classes[2], 0, at, 1500)
			add(&classes[2].Queued, 1500)
			free = max(free, at) + 1500*8*second/4_500_000
			left(0, free, 1500)
			if bin := free / sampleBin; bin < sampleBins {
				delay[bin] = max(delay[bin], free-at)
			}
			for t := at; t < min(free, end); t = (t/sampleBin + 1) * sampleBin {
				waiting[t/sampleBin] += 1500 * (min(free, (t/sampleBin+1)*sampleBin) - t) / sampleBin
			}
		}
		if rng.Float64() < 0.01 { // ARP
			add(&classes[3].Uncolored, 60)
			d.Unmetered[at/sampleBin] += 60
		}
	}
	d.Classes = classes
	d.Meters = []MeterSeries{
		{Name: "video", Kind: "srtcm", Params: "cir=6mbit/s cbs=150kB ebs=300kB", C: video.Bucket(), E: excess.Bucket(), Packets: video.packets},
		{Name: "voice", Kind: "tokenbucket", Params: "rate=1mbit/s burst=4kB", C: voice.Bucket(), Packets: voice.packets},
	}
	d.Queues = []QueueSeries{{
		Name: "bulk", Params: "rate=4.5mbit/s limit=5s", Delay: delay, Waiting: waiting,
		Full:  dataplane.Count{Packets: 1234, Bytes: 1_851_000},
		CoDel: dataplane.Count{Packets: 2, Bytes: 3000},
	}}
	for _, c := range classes {
		total := c.total()
		d.Packets += total.Packets
		d.Bytes += total.Bytes
	}
	d.Duration = end - 417*1e6/1000
	return d
}

func noBins() []int64 { return slices.Repeat([]int64{-1}, sampleBins) }

type sampleBucket struct {
	name              string
	rate, size, level int64 // bit/s, bytes, bytes
	last              int64
	lowest            []int64
	sum, packets      []int64
}

func newSampleBucket(name string, rate, size int64) *sampleBucket {
	return &sampleBucket{
		name: name, rate: rate, size: size, level: size, lowest: noBins(), sum: make([]int64, sampleBins),
		packets: make([]int64, sampleBins),
	}
}

// spill refills the bucket and returns the overflow.
func (b *sampleBucket) spill(at int64) int64 {
	b.level += b.rate * (at - b.last) / (8 * second)
	b.last = at
	over := max(0, b.level-b.size)
	b.level -= over
	return over
}

func (b *sampleBucket) takeBytes(at, n int64) bool {
	b.spill(at)
	ok := n <= b.level
	if ok {
		b.level -= n
	}
	b.seeTime(at)
	return ok
}

func (b *sampleBucket) seeTime(at int64) {
	bin := at / sampleBin
	b.sum[bin] += b.level
	b.packets[bin]++
	if b.lowest[bin] < 0 || b.level < b.lowest[bin] {
		b.lowest[bin] = b.level
	}
}

func (b *sampleBucket) Bucket() BucketSeries {
	mean := noBins()
	for i, n := range b.packets {
		if n > 0 {
			mean[i] = b.sum[i] / n
		}
	}
	return BucketSeries{b.name, b.size, b.lowest, mean}
}

// hostile has names that would run as a script if they were not escaped.
const hostile = "</script><img src=x onerror=\"alert(1)\"><!--<script>alert('2')</script>{{.}}&amp;\u2028"

// hostileSample is sample with hostile text everywhere.
func hostileSample() Data {
	d := sample()
	d.Input, d.Policy, d.Version = hostile, hostile, hostile
	d.Warnings = []string{hostile}
	for i := range d.Meters {
		m := &d.Meters[i]
		m.Name, m.Kind, m.Params, m.C.Name = hostile, hostile, hostile, hostile
	}
	d.Queues[0].Name, d.Queues[0].Params = hostile, hostile
	for i := range d.Classes {
		d.Classes[i].Name, d.Classes[i].Meter = hostile, hostile
	}
	return d
}

// singleBin is the report of a capture with one packet.
func singleBin() Data {
	one := func(n int64) []int64 { return []int64{n} }
	d := Data{
		Input: "one.pcap", Policy: "tokenbucket 1mbit/s burst=3000", Version: "1.0.0",
		Start: 1, BinWidth: second, Packets: 1, Bytes: 1500,
		Meters: []MeterSeries{{
			Name: "all", Kind: "tokenbucket", Params: "rate=1mbit/s burst=3000",
			C: BucketSeries{"Tc", 3000, one(1500), one(1500)}, Packets: one(1),
		}},
		Queues: []QueueSeries{{Name: "all", Delay: one(-1), Waiting: one(0)}},
		Classes: []Class{
			{Name: "all", Meter: "tokenbucket", Green: dataplane.Count{Packets: 1, Bytes: 1500}},
		},
	}
	for i := range d.Offered {
		d.Offered[i], d.Passed[i] = one(0), one(0)
	}
	d.Offered[0], d.Passed[0] = one(1500), one(1500)
	return d
}
