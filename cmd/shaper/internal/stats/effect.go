package stats

import (
	"errors"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// problemsOf returns the reasons why not all packets go through a shaper, and notes about its
// interface. If it returns an error, this is unknown.
func problemsOf(sh live.Handle) (problems, notes []string, err error) {
	list, err := sh.Problems()
	for try := 0; errors.Is(err, kernel.ErrChanging) && try < 40; try++ { // a reload takes less than 2 s
		time.Sleep(50 * time.Millisecond)
		list, err = sh.Problems()
	}
	for _, p := range list {
		text := p.Found
		if remedy := cli.AdviceOf(p.Remedy, sh.Info().Interface); remedy != "" {
			text += ": " + remedy
		}
		if p.Harmless {
			notes = append(notes, text)
		} else {
			problems = append(problems, text)
		}
	}
	return problems, notes, err
}

// effect sets the fields about whether a shaper is effective.
func (st *Status) effect(sh live.Handle) {
	problems, notes, err := problemsOf(sh)
	if err != nil {
		st.Problems = []string{err.Error()}
		return
	}
	effective := len(problems) == 0
	st.Effective, st.Problems, st.Notes = &effective, problems, notes
}

// printEffect prints the problems and notes of a shaper.
func printEffect(p *say.Printer, st *Status) {
	for _, problem := range st.Problems {
		if st.Effective == nil {
			p.Printf("  cannot tell whether it is effective: %s\n", problem)
		} else {
			p.Printf("  not effective: %s\n", problem)
		}
	}
	for _, note := range st.Notes {
		p.Printf("  note     %s\n", note)
	}
}
