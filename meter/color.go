package meter

import "fmt"

// Color is a drop precedence. A larger value is worse, so max returns the worse of two
// colors.
type Color uint8

// The colors of RFC 2697 §3 and RFC 2698 §3.
const (
	Green Color = iota
	Yellow
	Red
)

var colorNames = [...]string{"green", "yellow", "red"}

// String returns green, yellow or red.
func (c Color) String() string {
	if int(c) < len(colorNames) {
		return colorNames[c]
	}
	return fmt.Sprintf("Color(%d)", uint8(c))
}

// ParseColor returns the color of the name green, yellow or red.
func ParseColor(s string) (Color, error) {
	for i, name := range colorNames {
		if s == name {
			return Color(i), nil
		}
	}
	return 0, fmt.Errorf("color %q: want green, yellow or red", s)
}
