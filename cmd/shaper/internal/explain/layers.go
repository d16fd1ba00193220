package explain

import (
	"strings"

	"github.com/google/gopacket"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/layer"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Bounds of the layers shown.
const (
	mostDecoded   = 64 << 10 // bytes of a packet
	mostLayers    = 32
	mostLayerText = 2000 // bytes of the text of a layer
)

// Layer is a protocol layer of a packet.
type Layer struct {
	Type   string `json:"type"`
	Bytes  int    `json:"bytes"`  // of the header
	Fields string `json:"fields"` // names and values
}

// Layers decodes the packet as it arrived. After an error the last layer is DecodeFailure, with the
// error.
func (w *Witness) Layers() []Layer { return layersOf(&w.packet) }

func layersOf(p *dataplane.Packet) []Layer {
	out := []Layer{}
	for i, l := range layer.Decode(p.Link, p.Data[:min(len(p.Data), mostDecoded)]) {
		if i == mostLayers {
			return append(out, Layer{Type: "more layers", Fields: "not shown"})
		}
		_, text, _ := strings.Cut(gopacket.LayerString(l), "\t")
		if len(text) > mostLayerText {
			text = strings.ToValidUTF8(text[:mostLayerText], "") + "…"
		}
		out = append(out,
			Layer{Type: l.LayerType().String(), Bytes: len(l.LayerContents()), Fields: say.Printable(text)})
	}
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
