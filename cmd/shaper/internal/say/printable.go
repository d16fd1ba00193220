package say

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable escapes control characters, characters that change the direction of
// text, and bytes that are not UTF-8. Use it for names that other people may choose, such
// as file names, because a terminal would obey those characters.
func Printable(name string) string {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	if utf8.ValidString(name) && !strings.ContainsFunc(name, unprintable) {
		return name
	}
	quoted := strconv.Quote(name)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Quoted writes a word of a command as a shell reads it.
func Quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,@%+", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	if Printable(word) != word {
		return "$'" + strings.ReplaceAll(strings.Trim(strconv.Quote(word), `"`), "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
