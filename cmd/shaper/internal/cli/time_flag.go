package cli

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// timeFlag is the value of a flag: a time in the syntax of policies. If the default is none,
// 0 is rejected, because it would mean none instead of a short time.
type timeFlag struct {
	*time.Duration
	text     string
	positive bool // 0 is rejected
}

// NewTimeFlag returns the value of a flag for a duration, with its default.
func NewTimeFlag(to *time.Duration, byDefault time.Duration) pflag.Value {
	*to = byDefault
	if byDefault == 0 {
		return &timeFlag{Duration: to, positive: true}
	}
	return &timeFlag{Duration: to, text: byDefault.String()}
}

func (s *timeFlag) String() string { return s.text }

func (s *timeFlag) Type() string { return "TIME" }

func (s *timeFlag) Set(text string) error {
	d, err := policyfile.ParseDuration(text)
	if err == nil && d == 0 && s.positive {
		err = errors.New("it must be above zero")
	}
	if err == nil {
		*s.Duration, s.text = d, text
	}
	return err
}
