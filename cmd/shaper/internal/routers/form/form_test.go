package form

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

var kinds = Readers{
	"number": func(words []string) (any, int, error) {
		n, err := strconv.Atoi(words[0])
		if err != nil {
			return nil, 0, fmt.Errorf("%q is not a number", words[0])
		}
		if len(words) > 1 && words[1] == "kbps" {
			return n * 1000, 2, nil
		}
		return n, 1, nil
	},
	"word": func(words []string) (any, int, error) { return words[0], 1, nil },
}

func TestForms(t *testing.T) {
	const police = "police [cir] <number:cir> {bc <number:bc> | pir <number:pir> | be <number:be>} [(conform-action | exceed-action) <word:act>]..."
	for _, c := range []struct{ form, text, want string }{
		{"shape average <number:rate>", "Shape Average 5", "rate=5"},
		{"shape average <number:rate>", "shape average 5 foo", `3 "foo" is not understood`},
		{"shape average <number:rate>", "shape average", "2 it is not complete"},
		{"shape average <number:rate>", "shape average x", `2 "x" is not a number`},
		{police, "police 8 kbps bc 5", "cir=8000 bc=5"},
		{police, "police cir 8 be 1 bc 5 pir 3", "cir=8 be=1 bc=5 pir=3"},
		{police, "police cir 8 be 1 bc 5 be 3", `7 "be" is not understood`},
		{police, "police cir 8 conform-action transmit exceed-action drop", "cir=8 act=transmit act=drop"},
		{police, "police cir 8 conform-action transmit exceed-action", "6 it is not complete"},
	} {
		f := Parse(c.form, kinds)
		v, err := f.Match(strings.Fields(c.text))
		var got []string
		for _, x := range v {
			got = append(got, fmt.Sprintf("%s=%v", x.Name, x.Value))
		}
		text := strings.Join(got, " ")
		if err != nil {
			text = fmt.Sprint(err.(*Mismatch).At, " ", err)
		}
		if text != c.want {
			t.Errorf("%q: got %s, want %s", c.text, text, c.want)
		}
	}
}
