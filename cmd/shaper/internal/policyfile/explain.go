package policyfile

import (
	"fmt"
	"strings"
)

// explain returns the place of the likely cause and its description. Other problems keep the
// description of the library.
func (f *syntaxProblem) explain() (position, string) {
	switch f.problem {
	case "mapping values are not allowed in this context":
		return f.secondColon()
	case "could not find expected ':'":
		return f.noColon(f.begins)
	case "block sequence entries are not allowed in this context":
		return f.at, `a list entry cannot begin here: put "- " at the beginning of a line`
	case "mapping keys are not allowed in this context":
		return f.at, `"? " cannot begin a value: put the value in quotes`
	case "found character that cannot start any token":
		if _, rest := f.around(f.at); !strings.HasPrefix(rest, "\t") {
			return f.at, fmt.Sprintf("a value cannot begin with %s: put it in quotes", f.character(f.at))
		}
		return f.at, "a tab cannot indent a line or follow \"-\": use spaces"
	case "found a tab character that violates indentation",
		"found a tab character where an indentation space is expected":
		return f.at, "a tab cannot indent a line: use spaces"
	case "found unexpected end of stream", "found unexpected document indicator":
		return f.begins, "this quote is never closed"
	case "found unknown escape character":
		return f.at, `unknown escape after \ in double quotes: write \\ for a backslash, or use single quotes`
	case "did not find expected hexdecimal number":
		return f.at, `hexadecimal digits are missing: \x has 2, \u has 4 and \U has 8`
	case "found invalid Unicode character escape code":
		return f.at, "this escape is not a Unicode character"
	case "found an indentation indicator equal to 0":
		return f.at, fmt.Sprintf("the indentation after %s must be from 1 to 9", f.character(f.begins))
	case "did not find expected alphabetic or numeric character": // an alias or an anchor
		return f.begins, fmt.Sprintf("a name is missing after %s: put a value that begins with it in quotes",
			f.character(f.begins))
	case "did not find expected <document start>":
		return f.afterEnd()
	case "did not find expected node content":
		return f.noValue()
	case "did not find expected key":
		return f.unexpected(`a list entry cannot follow keys in the same column: indent it below its key`)
	case "did not find expected '-' indicator":
		return f.unexpected(`this line continues a list, but does not begin with "- "`)
	case "did not find expected ',' or ']'":
		return f.bracket("]")
	case "did not find expected ',' or '}'":
		return f.bracket("}")
	}
	switch name := unknownAnchor().FindStringSubmatch(f.problem); {
	case name != nil:
		return f.at, fmt.Sprintf(
			"alias *%s has no anchor &%[1]s before it: put a value that begins with * in quotes", name[1])
	case strings.HasPrefix(f.problem, "exceeded max depth"):
		return f.at, "the values are nested too deeply"
	case strings.HasSuffix(f.context, "directive"), strings.HasSuffix(f.problem, "directive"),
		f.problem == "found incompatible YAML document":
		return position{f.at.line, 1}, fmt.Sprintf("a line that begins with %% is a directive: a %s has none",
			f.what)
	case strings.HasSuffix(f.context, "tag"), f.problem == "found undefined tag handle":
		return f.begins, fmt.Sprintf(
			"! begins a tag, and a %s has none: put a value that begins with ! in quotes", f.what)
	case f.context == "while scanning a block scalar":
		return f.at, fmt.Sprintf("after %s only -, + or an indentation from 1 to 9 can follow",
			f.character(f.begins))
	}
	return f.at, f.problem
}

// secondColon explains a key where none is allowed.
func (f *syntaxProblem) secondColon() (position, string) {
	before, _ := f.around(f.at)
	if strings.Contains(before, ": ") {
		return f.at, `a second ":" in one value: put a value that contains ": " in quotes`
	}
	above := f.at.line - 1
	for above > 1 && isBlank(f.line(above)) {
		above--
	}
	begins := position{above, 1 + indentation(f.line(above))}
	text := f.line(above)
	if at, found := strings.CutPrefix(strings.TrimLeft(text, " "), "- "); found {
		begins.column, text = begins.column+2, at
	}
	if text = strings.TrimSpace(text); !strings.Contains(text, ": ") && !strings.HasSuffix(text, ":") {
		return f.noColon(begins)
	}
	return position{f.at.line, 1 + indentation(before)},
		"this line is indented too far: keys of one mapping begin in the same column"
}

// noColon explains a key without a colon.
func (f *syntaxProblem) noColon(key position) (position, string) {
	if word := f.sample(key); strings.Contains(word, ":") {
		return key, fmt.Sprintf(`a space is missing after ":" in %s`, word)
	}
	return key, fmt.Sprintf(`":" is missing after the key %s`, f.sample(key))
}

// afterEnd explains text after the end of the outermost value.
func (f *syntaxProblem) afterEnd() (position, string) {
	before, _ := f.around(f.at)
	if strings.TrimSpace(before) != "" || f.closer() != "" {
		return f.unexpected("")
	}
	for n := f.at.line - 1; n > 0; n-- {
		if strings.HasPrefix(f.line(n), "...") {
			return f.at, fmt.Sprintf(`this line is after "...", which ends the %s`, f.what)
		}
	}
	return f.at, "this line is indented less than the first one"
}

// inBrackets reports whether brackets enclose the innermost open collection.
func (f *syntaxProblem) inBrackets() bool {
	c := f.character(f.open)
	return c == `"["` || c == `"{"`
}

// noValue explains a missing value.
func (f *syntaxProblem) noValue() (position, string) {
	_, rest := f.around(f.at)
	switch {
	case f.inBrackets() && (f.ends(f.at) || strings.HasPrefix(rest, "---")):
		return f.open, f.character(f.open) + " is never closed"
	case f.inBrackets() && strings.HasPrefix(rest, "- "):
		return f.at, `a list in brackets uses commas instead of "- "`
	case !f.inBrackets() && f.closer() != "":
		return f.at, fmt.Sprintf("%s closes nothing: put a value that begins with it in quotes", f.closer())
	}
	return f.at, fmt.Sprintf("a value is missing before %s", f.character(f.at))
}

// unexpected explains text that fits neither its line nor the lines above. inColumn is the
// explanation if both begin in the same column.
func (f *syntaxProblem) unexpected(inColumn string) (position, string) {
	before, _ := f.around(f.at)
	before = strings.TrimSpace(before)
	switch {
	case f.closer() != "":
		return f.at, f.closer() + " closes nothing"
	case before == "" && f.at.column == f.begins.column:
		return f.at, inColumn
	case before == "":
		return f.at, "the indentation of this line fits none of the lines above"
	case strings.HasSuffix(before, `"`), strings.HasSuffix(before, "'"):
		return f.at, fmt.Sprintf("unexpected %s after the closing quote", f.sample(f.at))
	}
	return f.at, fmt.Sprintf("unexpected %s after a value: put the whole value in quotes", f.sample(f.at))
}

// bracket explains a list or mapping in brackets without its end.
func (f *syntaxProblem) bracket(end string) (position, string) {
	_, rest := f.around(f.at)
	switch {
	case f.ends(f.at):
		return f.begins, f.character(f.begins) + " is never closed"
	case f.at.line > f.begins.line:
		return f.begins, fmt.Sprintf(`%s is not closed: "," or "%s" is missing before line %d`,
			f.character(f.begins), end, f.at.line)
	case f.closer() != "":
		return f.at, fmt.Sprintf(`want "%s" instead of %s`, end, f.closer())
	case strings.HasPrefix(rest, ":"):
		return f.at, `a second ":" in one value: put a value that contains ": " in quotes`
	}
	return f.at, fmt.Sprintf(`"," or "%s" is missing before %s`, end, f.sample(f.at))
}

// closer returns the closing bracket at the problem, quoted, or "".
func (f *syntaxProblem) closer() string {
	if c := f.character(f.at); c == `"]"` || c == `"}"` {
		return c
	}
	return ""
}

func indentation(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// isBlank reports whether a line is without keys and values.
func isBlank(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || strings.HasPrefix(line, "#")
}
