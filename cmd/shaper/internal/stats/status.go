package stats

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Status is the output of status --json, one line per shaper.
type Status struct {
	Interface   string     `json:"interface"`
	Direction   string     `json:"direction"`
	State       string     `json:"state"`
	Attached    bool       `json:"attached"`
	Hook        string     `json:"hook"`
	XDPMode     string     `json:"xdp_mode,omitempty"`
	ProgramID   uint32     `json:"program_id"`
	Kernel      string     `json:"kernel"`
	Pacer       string     `json:"pacer,omitempty"`
	Fair        string     `json:"fair,omitempty"`      // scheduler of fair queues: fq_codel or htb
	GSOLimit    uint32     `json:"gso_limit,omitempty"` // bytes
	Policy      string     `json:"policy"`
	Since       time.Time  `json:"since"`
	Loaded      time.Time  `json:"loaded"`
	DryRun      bool       `json:"dry_run"`
	Pinned      bool       `json:"pinned"`
	Process     int        `json:"process"` // process ID; 0: none
	Unconfirmed *time.Time `json:"unconfirmed_until,omitempty"`
	Peer        string     `json:"peer,omitempty"`
	Trees       []Tree     `json:"trees,omitempty"` // of links

	changesJSON

	Budgets []HostBudget    `json:"budgets,omitempty"` // budgets of the host
	Shares  []budgets.State `json:"shares,omitempty"`  // shares of budgets on servers

	Effective *bool    `json:"effective"` // null if unknown
	Problems  []string `json:"problems,omitempty"`
	Notes     []string `json:"notes,omitempty"`
}

// Remains is the output of status --json for other entries: state left behind, or a process waiting
// for its interface.
type Remains struct {
	Interface string `json:"interface"`
	Direction string `json:"direction,omitempty"`
	State     string `json:"state"` // stateLeft, stateWaiting, or why an interface is not shaped
	Attached  bool   `json:"attached"`
	What      string `json:"what,omitempty"`
	Process   int    `json:"process,omitempty"`
	Policy    string `json:"policy,omitempty"`
}

// The states of Remains.
const (
	stateLeft    = "left behind"
	stateWaiting = "waiting"
)

// Waiting returns the entry of a process that waits for its interface.
func Waiting(iface string, direction dataplane.Direction, process int, policy string) Remains {
	return Remains{
		Interface: iface, Direction: direction.String(), State: stateWaiting, Process: process,
		Policy: policy,
	}
}

// StatusOf returns the status of a shaper. look returns its changes.
func StatusOf(sh live.Handle, look ChangesLook) Status {
	about := sh.Info()
	attached, _ := sh.Attached()
	out := Status{
		Interface: about.Interface, Direction: about.Direction.String(), State: live.State(sh),
		Attached: attached, Hook: about.Place.Hook, XDPMode: about.Place.Mode,
		ProgramID: uint32(about.Program), Kernel: live.KernelRelease(), Pacer: string(about.Pacer),
		Fair: string(about.Fair), GSOLimit: about.GSOLimit, Peer: about.Peer,
		Since: about.Since, Loaded: about.Loaded, DryRun: about.Dry,
		Pinned: about.Pinned, Process: about.Process,
	}
	out.Trees = treesOf(about)
	if owned, err := sh.Owned(); err == nil && !owned {
		out.Process = 0
	}
	if l, err := policyfile.SourceOf(about.Label); err == nil {
		out.Policy = l.Name
		names := about.Budgets()
		if live.IsTap(about) {
			names = budgets.OnHost(&about.Outline)
		}
		out.Budgets = hostBudgets(names)
	}
	out.Shares = sh.Shares(out.Process)
	if until := about.Until; !until.IsZero() {
		out.Unconfirmed = &until
	}
	out.changesJSON = changesIn(sh, look)
	out.effect(sh)
	return out
}

// PrintSurvey prints all that a survey found.
func PrintSurvey(v *live.Survey, s cli.Streams, asJSON bool) error {
	p, list := say.NewPrinter(s.Out), []View(nil)
	if len(v.Names()) == 0 && !asJSON {
		p.Printf("no shaper is attached in this network namespace\n")
	}
	for _, sh := range v.List {
		if asJSON {
			p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, StatusOf(sh, lookAtChanges)))
		} else {
			list = append(list, ViewOf(sh, lookAtChanges, nil))
		}
	}
	for _, row := range remainsOf(v) {
		if asJSON {
			p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, row))
		} else {
			list = append(list, View{Remains: &row})
		}
	}
	PrintStatus(p, list)
	return p.Err
}

// remainsOf returns everything of a survey without a shaper.
func remainsOf(v *live.Survey) (out []Remains) {
	for _, a := range v.Away {
		out = append(out, Waiting(a.Interface, a.Direction, a.Process, a.Policy))
	}
	for _, l := range v.Left {
		out = append(out, Remains{
			Interface: l.Interface, Direction: l.Direction.String(), State: stateLeft, What: l.What,
		})
	}
	return out
}

// printStatus prints the status of a shaper.
func (v *View) printStatus(p *say.Printer) {
	about, st := &v.About, &v.Status
	out, b := p, &strings.Builder{}
	p = say.NewPrinter(b)
	defer func() { out.Folded(b.String()) }()
	p.Printf("%s: %s\n", live.Name(about), st.State)
	if live.IsTap(about) {
		p.Printf("  between  %s and %s\n", about.Interface, about.Peer)
	} else {
		p.Printf("  hook     %s, program %d, kernel %s\n", live.Hook(about), st.ProgramID, st.Kernel)
	}
	printEffect(p, st)
	if about.Pacer != "" {
		p.Printf("  queues   in %s\n", live.Pacer(about))
	}
	printTrees(p, st.Trees)
	p.Printf("  policy   %s (%s), loaded %s\n", st.Policy, say.Count(len(about.Outline.Classes), "class"),
		st.Loaded.Format(time.DateTime))
	printChanges(p, &st.changesJSON, about.Interface)
	for _, b := range st.Budgets {
		p.Printf("  budget   %s: %s; used by %s\n", b.Name, b.Params, strings.Join(b.Users, ", "))
		if b.Warning != "" {
			p.Printf("  warning  %s\n", b.Warning)
		}
	}
	for i := range st.Shares {
		p.Printf("  budget   %s\n",
			say.Printable(fmt.Sprintf("%s at %s: %v", st.Shares[i].Name, st.Shares[i].Store, &st.Shares[i])))
	}
	p.Printf("  since    %s (%v)\n", st.Since.Format(time.DateTime), time.Since(st.Since).Round(time.Second))
	if st.DryRun {
		p.Printf("  dry run  packets are counted, not changed\n")
	}
	if about.GSOLimit != 0 {
		why := ""
		if about.AskedGSO == 0 {
			why = ", by the rate of the slowest queue"
		}
		p.Printf("  gso      capped at %s bytes%s\n", say.Grouped(int64(about.GSOLimit)), why)
	}
	if st.Unconfirmed != nil {
		p.Printf("  confirm  by %s with shaper confirm %s, or it rolls back\n",
			st.Unconfirmed.Format(time.DateTime), about.Interface)
	}
}
