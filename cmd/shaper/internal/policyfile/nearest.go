package policyfile

import (
	"fmt"
	"strings"
)

// nearest returns the name that most resembles a misspelled one, or "" if none is close. Case, blanks,
// dashes, dots and underscores do not count; a missing, additional or other character, or two in the wrong
// order, count as one difference. Names with other digits are other names: ap-1 is no misspelled ap-7.
func nearest(name string, names []string) (best string) {
	from, digits := plainName(name)
	least := min(len(from)/5, 2) + 1 // a short name resembles too many others
	for _, other := range names {
		to, sameDigits := plainName(other)
		if digits != sameDigits || len(from)-len(to) >= least || len(to)-len(from) >= least {
			continue
		}
		if d := distance(from, to); d < least {
			best, least = other, d
		}
	}
	return best
}

// plainName returns the lower-case characters of a name that count for nearest, and the digits among them.
func plainName(s string) (out []rune, digits string) {
	for _, c := range strings.ToLower(s) {
		if strings.ContainsRune(" \u00a0-_.", c) {
			continue
		}
		if out = append(out, c); '0' <= c && c <= '9' {
			digits += string(c)
		}
	}
	return out, digits
}

// distance returns the number of differences between two names, each of which is edited once (optimal
// string alignment).
func distance(a, b []rune) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := range a {
		row, above, before := rows[(i+1)%3], rows[i%3], rows[(i+2)%3]
		row[0] = i + 1
		for j := range b {
			change := above[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return rows[len(a)%3][len(b)]
}

// maxSuggestions is the maximum number of unknown names for which a loader suggests others, because a file
// of customers may have a million.
const maxSuggestions = 100

// didYouMean returns a question about an unknown name of a kind, with the nearest known one; "" if none is
// near.
func (l *loader) didYouMean(kind, name string, names func() []string) string {
	key := kind + " " + name
	text, known := l.suggested[key]
	if known || len(l.suggested) == maxSuggestions {
		return text
	}
	if near := nearest(name, names()); near != "" {
		text = fmt.Sprintf(" (did you mean %q?)", near)
	}
	if l.suggested == nil {
		l.suggested = map[string]string{}
	}
	l.suggested[key] = text
	return text
}
