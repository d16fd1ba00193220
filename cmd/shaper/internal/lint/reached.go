package lint

import "github.com/a-seed-32e5a53f/shaper/dataplane"

// maxEffort is the maximum number of comparisons of values in unreached. They take about a
// second.
const maxEffort = 100_000_000

// shortMatch is the number of values up to which comparing matches takes no time.
const shortMatch = 8

// unreached finds classes all of whose packets match an earlier class.
func (l *linter) unreached() {
	classes := l.File.Policy.Classes
	long := make([]bool, len(classes))
	for i := range classes {
		m := &classes[i].Match
		n := len(m.Src) + len(m.Dst)
		for _, f := range dataplane.MatchFields {
			n += len(*f.List(m))
		}
		long[i] = n > shortMatch
	}
	for i := range classes {
		for j := range l.plan.Classifier.MayCover(&classes[i].Match) {
			if j >= i {
				break
			}
			covers, ok := false, true
			if a, b := &classes[j].Match, &classes[i].Match; long[i] || long[j] {
				covers, ok = l.covers(a, b)
			} else {
				covers = a.Covers(b)
			}
			if !ok {
				l.add(Note, &classes[i], "match",
					"not checked whether class %s and later classes are ever reached: the lists of the policy are too long",
					classes[i].Name)
				return
			}
			if covers {
				l.add(Warning, &classes[i], "match",
					"class %s is never reached: class %s before it matches all of its packets",
					classes[i].Name, classes[j].Name)
				break
			}
		}
	}
}

// covers reports whether a matches all packets matched by b. If the comparison would take too long,
// ok is false. The first values are compared first, because most matches differ there.
func (l *linter) covers(a, b *dataplane.Match) (covers, ok bool) {
	first := *b
	first.Src, first.Dst = b.Src[:min(len(b.Src), 1)], b.Dst[:min(len(b.Dst), 1)]
	one := len(a.Src) + len(a.Dst)
	all := len(a.Src)*len(b.Src) + len(a.Dst)*len(b.Dst)
	for _, f := range dataplane.MatchFields {
		n, k := len(*f.List(a)), len(*f.List(b))
		*f.List(&first) = (*f.List(b))[:min(k, 1)]
		one += n
		all += n * k
	}
	if l.effort += one; l.effort > maxEffort {
		return false, false
	}
	if !a.Covers(&first) {
		return false, true
	}
	if l.effort += all; l.effort > maxEffort {
		return false, false
	}
	return a.Covers(b), true
}
