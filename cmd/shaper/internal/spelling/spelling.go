// Package spelling finds the names that people meant.
package spelling

import (
	"fmt"
	"strings"
)

// MostCompared is the maximum number of names compared with a misspelled one: a hundred thousand take
// a second. Among more names there is no suggestion.
const MostCompared = 10_000

// DidYouMean returns a question about an unknown name on a command line, such as ` (did you mean "eth0"?)`,
// or "" if no known name is close.
func DidYouMean(name string, names []string) string {
	return Question(Closest(name, names))
}

// Question returns the question whether a name was meant, or "" for "".
func Question(near string) string {
	if near == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", near)
}

// Closest is Nearest for a name on a command line, where a wrong suggestion costs nothing: a third of the
// characters may differ, at most two, and if no name has the same digits, they may differ too.
func Closest(name string, names []string) (best string) {
	from, digits := plainName(name)
	if best = closest(from, digits, len(from)/3, names); best == "" && digits != "" {
		best = closest(from, "", len(from)/3, names)
	}
	return best
}

// Nearest returns the name that most resembles a misspelled one, or "" if none is close. Case, blanks,
// dashes, dots and underscores do not count; a missing, additional or other character, or two in the wrong
// order, count as one difference. Names with other digits are other names: ap-1 is no misspelled ap-7.
func Nearest(name string, names []string) string {
	from, digits := plainName(name)
	return closest(from, digits, len(from)/5, names) // a short name resembles too many others
}

// closest returns the name with the fewest differences from the characters of another, at most 2. Names with
// other digits are skipped, unless digits is empty and the other has some.
func closest(from []rune, digits string, most int, names []string) (best string) {
	if len(names) > MostCompared {
		return ""
	}
	least := min(most, 2) + 1
	anyDigits := digits == "" && strings.ContainsAny(string(from), "0123456789")
	for _, other := range names {
		to, otherDigits := plainName(other)
		if !anyDigits && digits != otherDigits || len(from)-len(to) >= least || len(to)-len(from) >= least {
			continue
		}
		if d := distance(from, to); d < least {
			best, least = other, d
		}
	}
	return best
}

// plainName returns the lower-case characters of a name that count, and the digits among them.
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
