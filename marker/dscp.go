package marker

import (
	"fmt"
	"strconv"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// AF returns the default map from DSCP to color of RFC 2597: the color of an
// assured forwarding codepoint is its drop precedence, AFx1 green, AFx2 yellow,
// AFx3 red. All other codepoints are green.
func AF() [64]meter.Color {
	var colors [64]meter.Color
	for class := 1; class <= 4; class++ {
		for precedence := 1; precedence <= 3; precedence++ {
			colors[af(class, precedence)] = meter.Color(precedence - 1)
		}
	}
	return colors
}

func af(class, precedence int) int { return 8*class + 2*precedence }

var dscpNames = func() map[string]uint8 {
	names := map[string]uint8{"default": 0, "be": 0, "le": 1, "va": 44, "ef": 46}
	for class := range 8 {
		names[fmt.Sprintf("cs%d", class)] = uint8(8 * class)
		for precedence := 1; precedence <= 3 && 1 <= class && class <= 4; precedence++ {
			names[fmt.Sprintf("af%d%d", class, precedence)] = uint8(af(class, precedence))
		}
	}
	return names
}()

// ParseDSCP parses a codepoint: a number from 0 to 63, or one of the names af11
// to af43, cs0 to cs7, ef, va, le, be, default (RFC 2474, 2597, 3246, 5865,
// 8622).
func ParseDSCP(s string) (uint8, error) {
	if v, ok := dscpNames[s]; ok {
		return v, nil
	}
	v, err := strconv.ParseUint(s, 10, 8)
	if err != nil || v > 63 {
		return 0, fmt.Errorf("DSCP %q: want 0 to 63 or a name such as af11, cs3, ef", s)
	}
	return uint8(v), nil
}

// DSCPName returns the name of a codepoint, be, cs1 to cs7, af11 to af43 or ef, or
// else its number.
func DSCPName(dscp uint8) string {
	switch class, precedence := int(dscp/8), int(dscp%8/2); {
	case dscp == 0:
		return "be"
	case dscp%8 == 0:
		return fmt.Sprintf("cs%d", class)
	case dscp%2 == 0 && precedence != 0 && 1 <= class && class <= 4:
		return fmt.Sprintf("af%d%d", class, precedence)
	case dscp == 46:
		return "ef"
	}
	return strconv.Itoa(int(dscp))
}
