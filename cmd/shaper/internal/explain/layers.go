package explain

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Bounds of the layers that are shown.
const (
	mostDecoded   = 64 << 10 // bytes of a packet
	mostLayers    = 32
	mostLayerText = 2000 // bytes of the text of a layer
)

// Layer is a protocol layer of a packet, as gopacket decodes it.
type Layer struct {
	Type   string `json:"type"`
	Bytes  int    `json:"bytes"`  // of the header
	Fields string `json:"fields"` // names and values
}

// Layers decodes the packet as it arrived. The last layer of a packet that gopacket cannot decode
// is DecodeFailure, with the error.
func (w *Witness) Layers() []Layer { return layersOf(&w.packet) }

func layersOf(p *dataplane.Packet) []Layer {
	data, first := p.Data, gopacket.Decoder(layers.LinkType(p.Link))
	out := []Layer{}
	if p.Link > math.MaxUint8 { // gopacket has no decoder for SLL2, nor a number for it
		data, first = data[min(p.L3, len(data)):], gopacket.LayerTypePayload
		switch p.Kind {
		case dataplane.IPv4:
			first = layers.LayerTypeIPv4
		case dataplane.IPv6:
			first = layers.LayerTypeIPv6
		}
		out = append(out, Layer{Type: fmt.Sprintf("link type %v", p.Link), Bytes: len(p.Data) - len(data)})
	}
	data = data[:min(len(data), mostDecoded)]
	for i, l := range gopacket.NewPacket(data, first, gopacket.NoCopy).Layers() { // it recovers from panics of decoders
		if i == mostLayers {
			return append(out, Layer{Type: "more layers", Fields: "not shown"})
		}
		out = append(out, layerOf(l))
	}
	return out
}

// contents are the fields of all layers with the bytes of the header and of the rest.
var contents = regexp.MustCompile(`Contents=\[[^]]*\] Payload=\[[^]]*\] ?`)

// layerOf describes a layer.
func layerOf(l gopacket.Layer) (out Layer) {
	out = Layer{Type: l.LayerType().String(), Bytes: len(l.LayerContents()), Fields: "cannot be printed"}
	defer func() { _ = recover() }() // from a panic of gopacket in a malformed layer
	_, text, _ := strings.Cut(gopacket.LayerString(l), "\t")
	text = strings.TrimSuffix(strings.TrimPrefix(contents.ReplaceAllString(text, ""), "{"), "}")
	if len(text) > mostLayerText {
		text = strings.ToValidUTF8(text[:mostLayerText], "") + "…"
	}
	out.Fields = say.Printable(text)
	return out
}

// layerLines writes layers for people.
func layerLines(list []Layer) (lines []string) {
	for _, l := range list {
		line := l.Type
		if l.Bytes > 0 {
			line += ", " + say.Count(l.Bytes, "byte")
		}
		if l.Fields != "" {
			line += ": " + l.Fields
		}
		lines = append(lines, line)
	}
	return lines
}
