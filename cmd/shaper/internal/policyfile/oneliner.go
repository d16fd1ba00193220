package policyfile

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// OneLiner is a policy that is given by flags: one class, or a rate for all traffic.
// Flags that were not given are empty.
type OneLiner struct {
	Rate               string `json:",omitempty"` // "50mbit"; of the other flags only Length may be set
	Meter              string // "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB"; without one all packets are green
	Green, Yellow, Red string // "drop", "dscp=af12,queue"
	Queue              string // "rate=20mbit limit=100ms"
	Length             string // "l2", "base=l2,overhead=4"
}

// Names of the parts of a one-liner.
const (
	oneClass = "all"
	oneQueue = "queue"
)

// Load converts the flags into the nodes of a file and reads those, so that files and flags
// have one reader.
func (o OneLiner) Load() (*File, error) {
	flags := []struct{ name, text string }{
		{"--meter", o.Meter},
		{"--green", o.Green},
		{"--yellow", o.Yellow},
		{"--red", o.Red},
		{"--queue", o.Queue},
		{"--length", o.Length},
		{"--rate", o.Rate},
	}
	l := newLoader(func(n *yaml.Node) string {
		return fmt.Sprintf("%s:1:%d", flags[max(n.Line, 1)-1].name, max(n.Column, 1))
	})
	l.file.Flags = true
	l.queueHint = `define it with --queue "rate=... limit=..."`
	l.envelopeHint = "an envelope needs a policy file"
	// A node's line is the number of the flag, its column the column in the flag.
	words := func(flag int) []*yaml.Node { return splitWords(flags[flag].text, flag+1) }

	var root *yaml.Node
	if o.Rate != "" {
		root = l.ratePolicy(scalar(o.Rate, 7, 1))
	} else {
		root = l.oneClass(words, o)
	}
	if o.Length != "" && root != nil {
		length := mappingNode(6)
		for _, w := range words(5) {
			if !strings.Contains(w.Value, "=") {
				put(length, scalar("base", 6, w.Column), w)
				continue
			}
			l.assign(length, w)
		}
		put(root, scalar("length", 6, 1), length)
	}
	if root == nil {
		return nil, l.joined()
	}
	return l.policy(root)
}

// oneClass returns the policy of all flags except --rate and --length. words returns the
// words of a flag.
func (l *loader) oneClass(words func(flag int) []*yaml.Node, o OneLiner) *yaml.Node {
	at := 1 // --meter
	if o.Meter == "" {
		at = 2 // --green
	}
	class := mappingNode(at)
	put(class, scalar("name", at, 1), scalar(oneClass, at, 1))
	meter := mappingNode(1)
	for i, w := range words(0) {
		last := len(meter.Content) - 1
		switch assigns := strings.Contains(w.Value, "="); {
		case i == 0 && !assigns:
			put(meter, scalar("type", 1, w.Column), w)
		case last > 0 && meter.Content[last-1].Value == "per" && isNumber(w.Value): // src/24,64
			meter.Content[last].Value += "," + w.Value
		default:
			l.assign(meter, w)
		}
	}
	if o.Meter != "" {
		put(class, scalar("meter", 1, 1), meter)
	}
	for flag, color := range []string{1: "green", 2: "yellow", 3: "red"} {
		if action := words(flag); color != "" && action != nil {
			put(class, scalar(color, flag+1, 1), l.oneAction(action, flag+1))
		}
	}
	root := mappingNode(at)
	put(root, scalar("classes", at, 1), &yaml.Node{Kind: yaml.SequenceNode, Line: at, Column: 1, Content: []*yaml.Node{class}})
	if o.Queue != "" {
		queue, queues := mappingNode(5), mappingNode(5)
		for _, w := range words(4) {
			l.assign(queue, w)
		}
		put(queues, scalar(oneQueue, 5, 1), queue)
		put(root, scalar("queues", 5, 1), queues)
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

// splitWords splits the value of a flag at spaces and commas.
func splitWords(s string, line int) []*yaml.Node {
	var words []*yaml.Node
	for i := 0; i < len(s); {
		end := strings.IndexAny(s[i:], " ,\t")
		if end < 0 {
			end = len(s) - i
		}
		if end > 0 {
			words = append(words, scalar(s[i:i+end], line, i+1))
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
