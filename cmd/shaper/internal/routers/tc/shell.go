package tc

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
)

// tcCommand is a command of a shell script, or a line for tc -batch.
type tcCommand struct {
	routers.Line // Words have no quotes, and known variables are expanded
	labels       tcLabels
	block        int // line of the loop, condition or function around it; 0: none
	changes      int // times that unknown variables in the name of its interface got other values
}

// tcLabels are the names of comments such as "# class: voice" above a command, without a blank line
// between.
type tcLabels struct{ class, queue, link, guarantee string }

// tcScript reads a shell script. It knows comments, line continuations, quotes, several commands
// in a line, assignments, and sums with whole numbers. Nothing else is evaluated.
type tcScript struct {
	vars     map[string]string
	unsure   map[string]int      // variables whose values are not known: untilSet or forGood
	sourced  bool                // another file may set any variable
	changes  map[string]int      // times that variables got values which are not known; "": all of them
	setBy    map[string][]string // variables by the functions that set them
	inside   string              // the open function
	exported bool                // by shaper, so comments tell guarantees
	labels   tcLabels
	last     int   // number of the last line
	batch    bool  // it has tc -batch
	blocks   []int // lines of the open loops, conditions and functions
	function int   // number of blocks around the open function; 0: none is open
	commands []tcCommand
}

// shellPrompt is user@host:~$, [root@host ~]# or $.
var shellPrompt = pattern.Lazy(
	`^\s*(?:[\w.-]+@[\w.-]+[: ][^\s#$]*\s?[#$]|\[[\w.-]+@[\w.-]+ [^\]]*\][#$]|\$)(?P<level>) `)

// hereDocument is <<EOF, <<-EOF or <<'EOF', without that of <<<.
var hereDocument = pattern.Lazy(`^[^#]*[^<#]<<-?\s*\\?('[^']+'|"[^"]+"|[^\s'"<;&|]+)`)

// forShell matches a command that runs the text behind it.
var forShell = pattern.Lazy(`(?:^|[;&|] *|\b(?:sudo|exec|env) )(?:\S*/)?(?:sh|bash|dash|ash|ksh|zsh|ssh)(?:[ <]|$)`)

// isComment reports whether a line ends with a comment, which is not continued.
func isComment(line string) bool {
	before, _, found := strings.Cut(line, " #")
	quoted := strings.Count(before, `"`)%2 == 1 || strings.Count(before, "'")%2 == 1
	return strings.HasPrefix(line, "#") || found && !quoted
}

// maxExpansion bounds the length of a line with its variables: otherwise variables could double it
// over and over.
const maxExpansion = 64 << 10

func readScript(text string) ([]tcCommand, error) {
	lines, err := routers.ReadLines(text, shellPrompt)
	if err != nil {
		return nil, err
	}
	s := &tcScript{
		vars: map[string]string{}, unsure: map[string]int{}, setBy: map[string][]string{},
		changes: map[string]int{}, exported: strings.Contains(text, "shaper export"),
	}
	missing := map[string]bool{} // marks of here documents that do not come any more
	for i := 0; i < len(lines); i++ {
		first := lines[i]
		parts := []string{first.Text()}
		for n := 0; strings.HasSuffix(parts[n], `\`) && !isComment(parts[n]) && i+1 < len(lines) &&
			lines[i+1].Number == lines[i].Number+1; n++ {
			i++
			parts[n] = strings.TrimSuffix(parts[n], `\`)
			parts = append(parts, lines[i].Text())
		}
		if first.Number != s.last+1 {
			s.labels = tcLabels{}
		}
		s.last = lines[i].Number
		text := strings.Join(parts, " ")
		s.line(first.Number, text)
		// a text for a command, unless that is tc -batch
		if m := hereDocument().FindStringSubmatch(text); m != nil && !s.batch {
			mark, end := strings.Trim(m[1], `'"`), -1
			if !missing[mark] {
				end = slices.IndexFunc(lines[i:], func(l routers.Line) bool { return l.Text() == mark })
				missing[mark] = end < 0
			}
			for range max(end, 0) {
				if i++; forShell().MatchString(text) && lines[i].Text() != mark {
					s.blocks = append(s.blocks, first.Number) // it runs elsewhere, or with other variables
					s.line(lines[i].Number, lines[i].Text())
					s.blocks = s.blocks[:max(len(s.blocks)-1, 0)]
				}
			}
		}
	}
	return s.commands, nil
}

// line reads a line.
func (s *tcScript) line(number int, text string) {
	if comment, ok := strings.CutPrefix(text, "#"); ok {
		kind, name, _ := strings.Cut(strings.TrimSpace(comment), ":")
		name = strings.TrimSpace(name)
		if plain, err := strconv.Unquote(name); err == nil {
			name = plain
		}
		switch kind {
		case "class":
			s.labels.class = name
		case "queue":
			s.labels.queue = name
		case "link":
			s.labels.link = name
		case "guarantee":
			if s.exported {
				s.labels.guarantee = name
			}
		}
		return
	}
	var words []string
	s.batch = false
	unsure := false // whether the command runs depends on those before it
	for rest := blankRedirection().ReplaceAllString(text, "$1"); ; {
		word, after, ok := s.word(rest)
		if ok && !word.separator {
			rest, words = after, append(words, word.values...)
			continue
		}
		depth := len(s.blocks)
		if unsure {
			s.blocks = append(s.blocks, number)
		}
		s.command(number, words)
		if unsure && len(s.blocks) > depth {
			s.blocks = slices.Delete(s.blocks, depth, depth+1)
		}
		if !ok {
			return
		}
		separator := strings.TrimSpace(rest[:len(rest)-len(after)])
		unsure = separator == "||" || separator == "&&" && (unsure || !succeeds(words))
		rest, words = after, nil
	}
}

// succeeds reports whether a command of a working script succeeds.
func succeeds(words []string) bool {
	for len(words) > 1 && (words[0] == "sudo" || assignment().MatchString(words[0])) {
		words = words[1:]
	}
	return len(words) == 0 || assignment().MatchString(words[0]) || slices.Contains([]string{
		"tc", "$TC", "ip", "ifconfig", "ethtool", "modprobe", "sysctl", "iptables", "ip6tables", "nft", "echo",
		"cd", "true", ":", "sleep", "set",
	}, path.Base(words[0]))
}

// tcWord is a word after expansion: no, one or several words, or a separator of commands.
type tcWord struct {
	values    []string
	separator bool
}

// word cuts the first word from a line. It returns false at the end and at a comment.
func (s *tcScript) word(line string) (w tcWord, rest string, ok bool) {
	line = strings.TrimLeft(line, " ")
	if line == "" || line[0] == '#' {
		return w, "", false
	}
	if n := len(line) - len(strings.TrimLeft(line, ";&|")); n > 0 {
		return tcWord{separator: true}, line[n:], true
	}
	var text strings.Builder
	quote, quoted := byte(0), false
	i := 0
	for ; i < len(line); i++ {
		switch c := line[i]; {
		// 2>&1
		case quote == 0 && strings.IndexByte(" ;&|", c) >= 0 && (c != '&' || i == 0 || line[i-1] != '>'):
			return s.split(text.String(), quoted), line[i:], true
		case quote == 0 && (c == '"' || c == '\''):
			quote, quoted = c, true
		case c == quote:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(line):
			i++
			text.WriteByte(line[i])
		case c == '`' && quote != '\'' && text.Len() < maxExpansion:
			value, n := s.substitution(line[i:])
			text.WriteString(value)
			i += n - 1
		case c == '$' && quote != '\'' && text.Len() < maxExpansion:
			value, n := s.expand(line[i:])
			text.WriteString(value)
			i += n - 1
		default:
			text.WriteByte(c)
		}
	}
	return s.split(text.String(), quoted), "", true
}

// split splits the value of a word without quotes at blanks, as the shell does.
func (s *tcScript) split(text string, quoted bool) tcWord {
	if !quoted && redirection().MatchString(text) {
		return tcWord{}
	}
	if quoted || assignment().MatchString(text) {
		return tcWord{values: []string{text}}
	}
	return tcWord{values: strings.Fields(text)}
}

var (
	assignment  = pattern.Lazy(`^[A-Za-z_]\w*\+?=`)
	redirection = pattern.Lazy(`^\d*[<>]`)
	// a redirection with a blank before the name of its file
	blankRedirection = pattern.Lazy(`( \d*>>?) +`)
	variable         = pattern.Lazy(`^\$(\w+|\{(\w+)(:?[-=]([^}]*))?\})`)
)

// expand returns the value of the variable at the beginning of a text, and the length of its name.
// A variable without a known value stays as it is.
func (s *tcScript) expand(text string) (value string, length int) {
	if strings.HasPrefix(text, "$(") {
		return s.substitution(text)
	}
	m := variable().FindStringSubmatch(text)
	if m == nil {
		return "$", 1
	}
	name := m[1]
	if m[2] != "" {
		name = m[2]
	}
	if v, ok := s.vars[name]; ok && (v != "" || !strings.HasPrefix(m[3], ":")) {
		return v, len(m[0])
	}
	if m[4] != "" && (!s.sourced || name[0] <= '9') && s.unsure[name] == 0 {
		return m[4], len(m[0])
	}
	return m[0], len(m[0])
}

// Words around blocks of commands.
var (
	openers      = []string{"if", "for", "while", "until", "case", "select"}
	closers      = []string{"fi", "done", "esac", "}"}
	leaders      = []string{"then", "do", "else", "sudo", "exec", "command", "!", "time"}
	declarations = []string{"export", "local", "readonly", "declare"}
)

// command handles a command.
func (s *tcScript) command(number int, words []string) {
	for len(words) > 0 && (slices.Contains(leaders, words[0]) || isPattern(words[0])) {
		words = words[1:]
	}
	if len(words) == 0 {
		return
	}
	if m := execLine().FindStringSubmatch(words[0]); m != nil { // of systemd
		if !strings.HasPrefix(m[1], "Start") {
			return
		}
		words = append([]string{m[2]}, words[1:]...)
	}
	for i := range words[:min(len(words), 2)] {
		if head, ok := strings.CutSuffix(words[i], "(){"); ok && (i == 0 || words[0] == "function") {
			words = slices.Concat(words[:i], []string{head + "()", "{"}, words[i+1:])
			break
		}
	}
	s.batch = s.batch || slices.ContainsFunc(words, isBatch)
	closes, _, _ := strings.Cut(words[0], ">")
	closes, _, _ = strings.Cut(closes, "<")
	switch first := words[0]; {
	case slices.Contains(closers, closes):
		if n := len(s.blocks); n > 0 {
			s.blocks = s.blocks[:n-1]
			s.function = min(s.function, n-1)
		}
		return
	case first == "local": // not the variable outside of the function
		return
	case first == "function", strings.HasSuffix(first, "()"), len(words) > 1 && words[1] == "()":
		s.inside = strings.TrimSuffix(first, "()")
		if first == "function" && len(words) > 1 {
			s.inside = strings.TrimSuffix(words[1], "()")
		}
		i := slices.Index(words, "{")
		if i < 0 {
			s.function = len(s.blocks) + 1
			return // the block begins with a later {
		}
		s.blocks = append(s.blocks, number)
		s.function = len(s.blocks)
		s.command(number, words[i+1:])
		return
	case first == "{":
		s.blocks = append(s.blocks, number)
		s.command(number, words[1:])
		return
	case (first == "exit" || first == "return") && len(s.blocks) == 0:
		s.blocks = append(s.blocks, number) // nothing behind it runs
		return
	case slices.Contains(openers, first):
		s.blocks = append(s.blocks, number)
		for _, w := range words[1:] {
			if name, _, ok := strings.Cut(w, "="); ok && assignment().MatchString(w) {
				s.forget(strings.TrimSuffix(name, "+"))
			}
		}
	case slices.Contains(declarations, first):
		words = words[1:]
	}
	s.sets(words)
	s.assign(number, words)
}

// isPattern reports whether a word is a pattern of case: ...)
func isPattern(word string) bool {
	return strings.HasSuffix(word, ")") && !strings.HasSuffix(word, "()") && !assignment().MatchString(word) &&
		!strings.HasPrefix(word, "((") && !strings.ContainsAny(word, "$`")
}

// execLine matches a command of a unit of systemd.
var execLine = pattern.Lazy(`^Exec(Start(?:Pre|Post)?|Stop(?:Post)?|Reload|Condition)=[-+!@:]*(.*)$`)

// isBatch reports whether a word is the option -batch of tc, which can be abbreviated.
func isBatch(word string) bool { return len(word) > 1 && strings.HasPrefix("-batch", word) }

// assign handles assignments, and the command after them.
func (s *tcScript) assign(number int, words []string) {
	n := slices.IndexFunc(words, func(w string) bool { return !assignment().MatchString(w) })
	if n >= 0 {
		line := routers.Line{Number: number, Words: words[n:]}
		c := tcCommand{Line: line, labels: s.labels}
		if dev := slices.Index(line.Words, "dev"); dev >= 0 {
			c.changes = s.changed(line.Word(dev + 1))
		}
		if len(s.blocks) > 0 {
			c.block = s.blocks[0]
		}
		s.commands = append(s.commands, c)
		s.labels.guarantee = "" // that of one class
		return
	}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		if name, adds := strings.CutSuffix(name, "+"); adds || len(s.blocks) > 0 || len(value) > maxExpansion {
			s.forget(name) // its value depends on more than this line
		} else if s.unsure[name] != forGood {
			s.vars[name] = value
			delete(s.unsure, name)
		}
	}
}

// States of variables whose values are not known.
const (
	untilSet = 1
	forGood  = 2 // a function sets it, which may run later
)

// forget makes the values of variables unknown.
func (s *tcScript) forget(names ...string) {
	for _, name := range names {
		delete(s.vars, name)
		if s.unsure[name] = max(s.unsure[name], untilSet); s.function > 0 {
			s.unsure[name] = forGood
			s.setBy[s.inside] = append(s.setBy[s.inside], name)
		}
		s.changes[name]++
	}
}

// changed returns how often the unknown variables of a text got other values.
func (s *tcScript) changed(text string) (n int) {
	for _, m := range unknown().FindAllStringSubmatch(text, -1) {
		n += s.changes[m[1]] + s.changes[""]
	}
	return n
}

// unknown matches a variable whose value is not known, or a parameter of the script.
var unknown = pattern.Lazy(`\$\{?(\w+)`)

// sets handles commands that set variables to values which are not known.
func (s *tcScript) sets(words []string) {
	for len(words) > 1 && (slices.Contains(openers, words[0]) && words[0] != "for" && words[0] != "select" ||
		slices.Contains(leaders, words[0]) || assignment().MatchString(words[0])) {
		words = words[1:]
	}
	if len(words) == 0 {
		return
	}
	rest := words[1:]
	switch first := words[0]; {
	case first == "." || first == "source" || first == "eval":
		s.vars, s.sourced = map[string]string{}, true
		s.changes[""]++
	case s.setBy[first] != nil:
		for _, name := range s.setBy[first] {
			s.changes[name]++
		}
	case first == "shift", first == "set" && slices.Contains(rest, "--"):
		for n := range 10 {
			s.forget(strconv.Itoa(n))
		}
	case first == "for", first == "select":
		s.forget(rest[0:min(1, len(rest))]...)
	case first == "unset" && len(s.blocks) == 0:
		for _, name := range rest {
			delete(s.vars, name)
		}
	case first == "printf":
		if len(rest) > 1 && rest[0] == "-v" {
			s.forget(rest[1])
		}
	case first == "read":
		for i, w := range rest {
			if !strings.HasPrefix(w, "-") && (i == 0 || !readOption().MatchString(rest[i-1])) {
				s.forget(name().FindString(w))
			}
		}
	case slices.Contains([]string{"unset", "let", "getopts", "mapfile", "readarray"}, first),
		strings.HasPrefix(first, "(("):
		for _, w := range words {
			s.forget(name().FindString(w))
		}
	}
}

// readOption matches an option of read with a value behind it.
var readOption = pattern.Lazy(`^-[a-zA-Z]*[adinNptu]$`)
