package say

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable escapes the control characters, the characters that change the
// direction of text, and the bytes that are no UTF-8 in a name that somebody
// else may have chosen, such as a file's. A terminal would obey them.
func Printable(name string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	if utf8.ValidString(name) && !strings.ContainsFunc(name, odd) {
		return name
	}
	quoted := strconv.Quote(name)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
