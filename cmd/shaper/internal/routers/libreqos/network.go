// Package libreqos reads the two files of LibreQoS as a policy with customers.
package libreqos

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

func init() { routers.Importers["libreqos"] = libreQoS{} }

// libreQoS reads the two files of LibreQoS: network.json, the tree of sites and access points, and
// ShapedDevices.csv, the devices of the circuits below them.
type libreQoS struct{}

// Companion returns the name of the second file.
func (libreQoS) Companion() string { return "ShapedDevices.csv" }

// siteRates are rates in both directions, bit/s; 0 means none.
type siteRates struct{ down, up int64 }

// site is a node of network.json.
type site struct {
	name     string
	kind     string // value of type
	line     int
	virtual  bool
	max, min siteRates
	above    *site // nil for a node at the top
	below    []*site
	level    int  // number of nodes that are not virtual, from the top to this one
	used     bool // a circuit is below it
	link     *dataplane.Link
}

// network is the content of network.json.
type network struct {
	sites   map[string]*site
	top     []*site
	order   []*site        // as in the file
	ignored map[string]int // first lines of keys without a meaning for us
	draft   *routers.Draft // for problems
	file    string         // name for problems
	devices string         // name of the other file
}

// Import reads network.json as the text, and ShapedDevices.csv as its companion.
func (libreQoS) Import(s routers.Source) (*routers.Import, error) {
	if s.Companion == nil {
		return nil, errors.New("its devices are missing: ShapedDevices.csv must be in the same directory")
	}
	in := &routers.Import{}
	n := &network{
		sites: map[string]*site{}, ignored: map[string]int{}, draft: in.Draft("libreqos", 0), file: s.Name,
		devices: s.Companion.Name,
	}
	if err := n.read(s.Text); err != nil {
		return nil, err
	}
	circuits, err := readCircuits(n, *s.Companion)
	if err != nil {
		return nil, err
	}
	if len(circuits) == 0 && len(n.draft.Problems) == 0 {
		return nil, fmt.Errorf("%s has no circuits", s.Companion.Name)
	}
	n.write(circuits)
	return in, nil
}

// cannot adds a problem of a node.
func (n *network) cannot(line int, format string, args ...any) {
	n.draft.Problems = append(n.draft.Problems,
		routers.Problem{File: n.file, Line: line, Reason: fmt.Sprintf(format, args...)})
}

func (n *network) note(file string, line int, format string, args ...any) {
	n.draft.Notes = append(n.draft.Notes,
		routers.Problem{File: file, Line: line, Reason: fmt.Sprintf(format, args...)})
}

// jsonReader reads JSON with the lines of its tokens.
type jsonReader struct {
	*json.Decoder
	text string
	at   int64 // offset up to which lines were counted
	line int
}

// lineNow returns the line of the last token.
func (r *jsonReader) lineNow() int {
	to := r.InputOffset()
	r.line += strings.Count(r.text[r.at:to], "\n")
	r.at = to
	return r.line
}

// fail returns an error at the last token.
func (r *jsonReader) fail(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", r.lineNow(), fmt.Sprintf(format, args...))
}

// token returns the next token. Syntax errors have their line.
func (r *jsonReader) token() (json.Token, error) {
	t, err := r.Token()
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		line := 1 + strings.Count(r.text[:min(max(syntax.Offset-1, 0), int64(len(r.text)))], "\n")
		return nil, fmt.Errorf("line %d: it is not JSON: %w", line, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("line %d: the JSON ends too early", 1+strings.Count(r.text, "\n"))
	}
	return t, err
}

// object calls f for each key of an object, after its name was read.
func (r *jsonReader) object(what string, f func(key string, line int) error) error {
	t, err := r.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return r.fail("%s must be an object such as {\"AP_1\": {...}}, not %v", what, t)
	}
	seen := map[string]bool{}
	for r.More() {
		t, err := r.token()
		if err != nil {
			return err
		}
		key, _ := t.(string)
		if seen[key] {
			return r.fail("duplicate name %q in %s", key, what)
		}
		seen[key] = true
		if err := f(key, r.lineNow()); err != nil {
			return err
		}
	}
	_, err = r.token()
	return err
}

// read reads network.json.
func (n *network) read(text string) error {
	text = strings.TrimPrefix(text, "\ufeff")
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return errors.New("it is not text")
	}
	r := &jsonReader{Decoder: json.NewDecoder(strings.NewReader(text)), text: text, line: 1}
	r.UseNumber()
	if err := n.nodes(r, "network.json", nil, 1); err != nil {
		return err
	}
	if _, err := r.Token(); !errors.Is(err, io.EOF) {
		return r.fail("there is more after the end of the object")
	}
	for _, s := range n.order {
		n.check(s)
	}
	return nil
}

// maxNesting bounds the recursion for nested nodes.
const maxNesting = 100

// nodes reads an object whose names are those of nodes.
func (n *network) nodes(r *jsonReader, what string, above *site, depth int) error {
	if depth > maxNesting {
		return r.fail("nodes are nested more than %d deep", maxNesting)
	}
	return r.object(what, func(name string, line int) error {
		s := &site{name: name, line: line, above: above}
		if other := n.sites[name]; other != nil {
			return r.fail("node %q is in line %d too: circuits name their parent, so its name must be unique", name,
				other.line)
		}
		n.sites[name] = s
		n.order = append(n.order, s)
		if above == nil {
			n.top = append(n.top, s)
		} else {
			above.below = append(above.below, s)
		}
		return n.node(r, s, depth)
	})
}

// node reads the value of a node.
func (n *network) node(r *jsonReader, s *site, depth int) error {
	what := fmt.Sprintf("node %q", s.name)
	rates := map[string]*int64{
		"downloadBandwidthMbps": &s.max.down, "uploadBandwidthMbps": &s.max.up,
		"downloadBandwidthMbpsMin": &s.min.down, "uploadBandwidthMbpsMin": &s.min.up,
	}
	return r.object(what, func(key string, line int) error {
		if key == "children" {
			return n.nodes(r, "children of "+what, s, depth+1)
		}
		t, err := r.token()
		if err != nil {
			return err
		}
		switch to := rates[key]; {
		case to != nil:
			number, ok := t.(json.Number)
			if !ok {
				return r.fail("%s of %s must be a number, not %v", key, what, t)
			}
			if *to, err = mbps(number.String()); err != nil {
				return r.fail("%s of %s: %v", key, what, err)
			}
		case key == "virtual":
			virtual, ok := t.(bool)
			if !ok {
				return r.fail("virtual of %s must be true or false, not %v", what, t)
			}
			s.virtual = s.virtual || virtual
		case key == "type":
			s.kind = fmt.Sprint(t)
			s.virtual = s.virtual || strings.EqualFold(s.kind, "virtual")
		case t == json.Delim('{'):
			return r.fail("%q of %s is not known: nodes below it belong into \"children\"", key, what)
		default:
			if n.ignored[key] == 0 {
				n.ignored[key] = line
			}
			return r.skip(t)
		}
		return nil
	})
}

// skip skips the rest of a value that begins with a token.
func (r *jsonReader) skip(t json.Token) error {
	depth := 0
	for {
		switch t {
		case json.Delim('['), json.Delim('{'):
			depth++
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
		if depth == 0 {
			return nil
		}
		var err error
		if t, err = r.token(); err != nil {
			return err
		}
	}
}

// mbps reads a rate in Mbit/s, and returns bit/s.
func mbps(s string) (int64, error) {
	r, ok := new(big.Rat).SetString(s)
	if !ok || len(s) > 20 || strings.ContainsAny(s, "/eExXpP_") {
		return 0, fmt.Errorf("%q is not a number of Mbit/s", s)
	}
	r.Mul(r, big.NewRat(1_000_000, 1))
	switch {
	case r.Sign() < 0:
		return 0, fmt.Errorf("%s Mbit/s is negative", s)
	case !r.IsInt() || !r.Num().IsInt64():
		return 0, fmt.Errorf("%s Mbit/s is not a whole number of bits per second", s)
	case r.Num().Int64() > 1e15:
		return 0, fmt.Errorf("%s Mbit/s is too large", s)
	}
	return r.Num().Int64(), nil
}

// check checks a node, after those above it.
func (n *network) check(s *site) {
	if above := s.above; above != nil {
		s.level = above.level
	}
	if s.virtual {
		return
	}
	s.level++
	if s.max.down == 0 || s.max.up == 0 {
		n.cannot(s.line, "node %q needs downloadBandwidthMbps and uploadBandwidthMbps above zero", s.name)
	}
	if one := s.min.down == 0 || s.min.up == 0; one && s.min != (siteRates{}) {
		n.cannot(s.line, "node %q has a minimum for one direction only", s.name)
	}
	if s.min.down > s.max.down || s.min.up > s.max.up {
		n.cannot(s.line, "node %q has a minimum above its maximum", s.name)
	}
	if s.level == queue.MaxLevels {
		n.cannot(s.line, "node %q has %d nodes above it: a tree has at most %d levels with the circuits", s.name,
			s.level-1, queue.MaxLevels)
	}
}

// physical returns the node, or the nearest one above it, that is not virtual; nil if there is none.
func (s *site) physical() *site {
	for s != nil && s.virtual {
		s = s.above
	}
	return s
}

// children returns the nodes below a node that are used and not virtual, those of virtual ones
// included.
func (s *site) children() (list []*site) {
	for _, c := range s.below {
		switch {
		case c.virtual:
			list = slices.Concat(list, c.children())
		case c.used:
			list = append(list, c)
		}
	}
	return list
}
