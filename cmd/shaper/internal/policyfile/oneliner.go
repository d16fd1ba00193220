package policyfile

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// OneLiner is a policy given by flags: one class, or a rate for all traffic. Flags not given are
// empty.
type OneLiner struct {
	Rate string `json:",omitempty"` // "50mbit"; of the other flags only Length may be set
	// "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB"; without one all packets are green
	Meter              string
	Green, Yellow, Red string // "drop", "dscp=af12,queue"
	Queue              string // "rate=20mbit limit=100ms"
	Length             string // "l2", "base=l2,overhead=4"
}

// Names of the parts of a one-liner.
const (
	oneClass = "all"
	oneQueue = "queue"
)

// Lines of nodes made from flags: the number of the flag. Their columns are those in the flag.
const (
	meterFlag = 1 + iota
	greenFlag
	yellowFlag
	redFlag
	queueFlag
	lengthFlag
	rateFlag
)

// Load converts the flags into the nodes of a file and reads those, so files and flags share one
// reader.
func (o OneLiner) Load() (*File, error) {
	flags := [...]struct{ name, text string }{
		meterFlag:  {"--meter", o.Meter},
		greenFlag:  {"--green", o.Green},
		yellowFlag: {"--yellow", o.Yellow},
		redFlag:    {"--red", o.Red},
		queueFlag:  {"--queue", o.Queue},
		lengthFlag: {"--length", o.Length},
		rateFlag:   {"--rate", o.Rate},
	}
	l := newLoader(func(at position) string {
		return fmt.Sprintf("%s:1:%d", flags[max(at.line, meterFlag)].name, max(at.column, 1))
	})
	l.file.Flags = true
	l.queueHint = `define it with --queue "rate=... limit=..."`
	l.envelopeHint = "an envelope needs a policy file"
	var root *yaml.Node
	if o.Rate != "" {
		root = l.ratePolicy(scalar(o.Rate, rateFlag, 1))
	} else {
		root = l.oneClass(o)
	}
	if root == nil {
		return nil, l.joined()
	}
	if o.Length != "" {
		length := mappingNode(lengthFlag)
		for _, w := range splitWords(o.Length, lengthFlag) {
			if strings.Contains(w.Value, "=") {
				l.assign(length, w)
			} else {
				put(length, scalar("base", lengthFlag, w.Column), w)
			}
		}
		put(root, scalar("length", lengthFlag, 1), length)
	}
	return l.policy(root)
}

// oneClass returns the policy of all flags except --rate and --length.
func (l *loader) oneClass(o OneLiner) *yaml.Node {
	at := meterFlag
	if o.Meter == "" {
		at = greenFlag
	}
	class := mappingNode(at)
	put(class, scalar("name", at, 1), scalar(oneClass, at, 1))
	meter := mappingNode(meterFlag)
	for i, w := range splitWords(o.Meter, meterFlag) {
		last := len(meter.Content) - 1
		switch assigns := strings.Contains(w.Value, "="); {
		case i == 0 && !assigns:
			put(meter, scalar("type", meterFlag, w.Column), w)
		case last > 0 && meter.Content[last-1].Value == "per" && isNumber(w.Value): // src/24,64
			meter.Content[last].Value += "," + w.Value
		default:
			l.assign(meter, w)
		}
	}
	if o.Meter != "" {
		put(class, scalar("meter", meterFlag, 1), meter)
	}
	for i, text := range [...]string{o.Green, o.Yellow, o.Red} {
		if words := splitWords(text, greenFlag+i); words != nil {
			put(class, scalar([...]string{"green", "yellow", "red"}[i], greenFlag+i, 1),
				l.oneAction(words, greenFlag+i))
		}
	}
	root := mappingNode(at)
	put(root, scalar("classes", at, 1),
		&yaml.Node{Kind: yaml.SequenceNode, Line: at, Column: 1, Content: []*yaml.Node{class}})
	if o.Queue != "" {
		queue, queues := mappingNode(queueFlag), mappingNode(queueFlag)
		for _, w := range splitWords(o.Queue, queueFlag) {
			l.assign(queue, w)
		}
		put(queues, scalar(oneQueue, queueFlag, 1), queue)
		put(root, scalar("queues", queueFlag, 1), queues)
	}
	return root
}

func isNumber(s string) bool { return strings.Trim(s, "0123456789") == "" }

// oneAction converts words such as dscp=af12 and queue into an action.
func (l *loader) oneAction(words []*yaml.Node, line int) *yaml.Node {
	if len(words) == 1 && (words[0].Value == "pass" || words[0].Value == "drop") {
		return words[0]
	}
	action := mappingNode(line)
	for _, w := range words {
		switch {
		case w.Value == "queue":
			put(action, scalar("queue", line, w.Column), scalar(oneQueue, line, w.Column))
		case strings.Contains(w.Value, "="):
			l.assign(action, w)
		default:
			l.fail(w, "unknown action %q: want pass, drop, or a list such as queue,dscp=af12", w.Value)
		}
	}
	return action
}

// assign adds a word key=value to a mapping.
func (l *loader) assign(m, word *yaml.Node) {
	key, value, ok := strings.Cut(word.Value, "=")
	if !ok {
		l.fail(word, "%q is not of the form key=value", word.Value)
		return
	}
	put(m, scalar(key, word.Line, word.Column), scalar(value, word.Line, word.Column+len(key)+1))
}

// splitWords splits the value of a flag at spaces and commas, but not a number from its unit. line is the
// number of the flag.
func splitWords(s string, line int) []*yaml.Node {
	var words []*yaml.Node
	for i := 0; i < len(s); {
		end := strings.IndexAny(s[i:], " ,\t")
		if end < 0 {
			end = len(s) - i
		}
		last := len(words) - 1
		switch word := s[i : i+end]; {
		case word == "":
		case last >= 0 && s[i-1] == ' ' && words[last].Column+len(words[last].Value) == i &&
			isSeparateUnit(words[last].Value, word):
			words[last].Value += " " + word
		default:
			words = append(words, scalar(word, line, i+1))
		}
		i += end + 1
	}
	return words
}

func scalar(value string, line, column int) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value, Line: line, Column: column}
}

func mappingNode(line int) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Line: line, Column: 1}
}

func put(m, key, value *yaml.Node) { m.Content = append(m.Content, key, value) }
