package policyfile

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// keyWords are the YAML keys of all meters for initial tokens and for tables.
var keyWords = []string{"initial", "per", "keys", "new", "evict"}

// commonKeys are the keys of meters and of fair queues.
var commonKeys = map[string]dataplane.KeyField{
	"src": dataplane.BySrc, "dst": dataplane.ByDst, "flow": dataplane.ByFlow, "vlan": dataplane.ByVLAN,
	"dscp": dataplane.ByDSCP,
}

// keyFields are the keys of meters. A list of keys is joined by commas.
var keyFields = func() map[string]dataplane.KeyField {
	fields := maps.Clone(commonKeys)
	for _, k := range []dataplane.KeyField{
		dataplane.ByAddress, dataplane.ByMAC, dataplane.ByVLANMAC, dataplane.ByVNI, dataplane.ByTEID,
		dataplane.ByMark, dataplane.ByCgroup,
	} {
		fields[k.String()] = k
	}
	return fields
}()

// fairFields are the keys of fair queues.
var fairFields = func() map[string]dataplane.KeyField {
	fields := maps.Clone(commonKeys)
	fields["hosts"] = dataplane.ByHosts
	return fields
}()

// keys reads the keyWords of a meter.
func (l *loader) keys(m *dataplane.Meter, d *draft) {
	per, initial := d.value("per"), d.value("initial")
	if per == nil {
		if initial != nil {
			m.Initial, _ = parsed(l, initial, "initial", parseShare)
		}
		for _, word := range []string{"keys", "new", "evict"} {
			if n := d.value(word); n != nil {
				l.fail(n, "%s needs a key, such as per: src", word)
				return
			}
		}
		return
	}
	if per.Kind == yaml.SequenceNode {
		m.Per = l.keyList(per)
	} else {
		m.Per, _ = parsed(l, per, "per", parseKey)
	}
	if initial != nil {
		l.fail(initial, "initial cannot be combined with per: write new: full or new: empty for new keys")
	}
	if n := d.value("keys"); n != nil {
		var ok bool
		if m.Keys, ok = parsed(l, n, "keys", parseInt); ok && (m.Keys < 1 || m.Keys > meter.MaxKeys) {
			l.fail(n, "keys: %d is not between 1 and %d", m.Keys, meter.MaxKeys)
		}
	}
	if n := d.value("new"); n != nil {
		if l.second(n, "new", "full", "empty") {
			m.Initial = dataplane.Fraction{Num: 0, Den: 1}
		}
	}
	if n := d.value("evict"); n != nil {
		m.Idle = l.second(n, "evict", "lru", "idle")
	}
}

// keyList reads a list of keys, which are one key together.
func (l *loader) keyList(n *yaml.Node) dataplane.Key {
	k, known := keyFields["["+strings.Join(listWords(n), ", ")+"]"]
	if !known {
		l.fail(n, "per: the only list is [vlan, mac]")
	}
	return dataplane.Key{By: k}
}

func parseKey(s string) (dataplane.Key, error) { return keyOf(s, keyFields) }

// parseFair reads the key of a fair queue.
func parseFair(s string) (dataplane.Key, error) {
	k, err := keyOf(s, fairFields)
	if err != nil {
		err = fmt.Errorf("%w; or false for first in, first out", err)
	}
	return k, err
}

// keyOf reads a key such as src, src/24 or src/24,64.
func keyOf(s string, fields map[string]dataplane.KeyField) (dataplane.Key, error) {
	name, prefix, cut := strings.Cut(s, "/")
	by, ok := fields[name]
	switch {
	case !ok:
		return dataplane.Key{}, fmt.Errorf(
			"%q is not a key: want one of %s, or a prefix such as src/24 or src/24,64", s,
			strings.Join(sorted(fields), ", "))
	case !cut:
		return dataplane.Key{By: by}, nil
	case !by.HasPrefix():
		return dataplane.Key{}, fmt.Errorf("%q: only src, dst and address have a prefix: write %s", s, name)
	}
	v4, v6, both := strings.Cut(prefix, ",")
	k := dataplane.Key{By: by}
	var err error
	if k.V4, err = prefixLength(s, v4, "v4", 32); err == nil && both {
		k.V6, err = prefixLength(s, v6, "v6", 128)
	}
	return k, err
}

func prefixLength(key, s, family string, most uint64) (uint8, error) {
	v, err := strconv.ParseUint(s, 10, 8)
	if err != nil || v < 1 || v > most {
		return 0, fmt.Errorf("%q: %q is not a prefix length of %s, from 1 to %d", key, s, family, most)
	}
	return uint8(v), nil
}

// joinPrefixes repairs per or fair: src/24,64 in a mapping in braces. In braces, YAML ends
// the value at the comma and reads 64 as a key.
func joinPrefixes(n *yaml.Node) {
	for i := 0; i+3 < len(n.Content); i += 2 {
		key, value, next, nothing := n.Content[i], n.Content[i+1], n.Content[i+2], n.Content[i+3]
		cut := next.Tag == "!!int" && nothing.Tag == "!!null" && nothing.Value == ""
		if (key.Value == "per" || key.Value == "fair") && value.Kind == yaml.ScalarNode && cut {
			whole := *value
			whole.Value += "," + next.Value
			n.Content[i+1] = &whole
			n.Content = append(n.Content[:i+2], n.Content[i+4:]...)
			return
		}
	}
}
