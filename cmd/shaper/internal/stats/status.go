package stats

import (
	"fmt"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
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

	classes int
}

// Remains is the output of status --json for other entries: state left behind, or a process waiting
// for its interface.
type Remains struct {
	Interface string `json:"interface"`
	Direction string `json:"direction,omitempty"`
	State     string `json:"state"` // "left behind" or "waiting"
	Attached  bool   `json:"attached"`
	What      string `json:"what,omitempty"`
	Process   int    `json:"process,omitempty"`
	Policy    string `json:"policy,omitempty"`
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
		classes: len(about.Outline.Classes), Since: about.Since, Loaded: about.Loaded, DryRun: about.Dry,
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
	p := say.NewPrinter(s.Out)
	if len(v.Names()) == 0 && !asJSON {
		p.Printf("no shaper is attached in this network namespace\n")
	}
	for i, sh := range v.List {
		st := StatusOf(sh, lookAtChanges)
		if asJSON {
			if err := say.WriteJSON(s.Out, st); err != nil {
				return err
			}
			continue
		}
		if i > 0 {
			p.Printf("\n")
		}
		printStatus(p, sh.Info(), &st)
	}
	if asJSON {
		return printRemains(v, s)
	}
	for _, a := range v.Away {
		p.Printf("%s %v: away: process %d is waiting for it, policy %s\n", a.Interface, a.Direction,
			a.Process, a.Policy)
	}
	for _, l := range v.Left {
		p.Printf("%s %v: left behind: %s (shaper detach %s removes it)\n", l.Interface, l.Direction, l.What,
			l.Interface)
	}
	return p.Err
}

func printRemains(v *live.Survey, s cli.Streams) error {
	var out []Remains
	for _, a := range v.Away {
		out = append(out, Remains{
			Interface: a.Interface, Direction: a.Direction.String(), State: "waiting", Process: a.Process,
			Policy: a.Policy,
		})
	}
	for _, l := range v.Left {
		out = append(out, Remains{
			Interface: l.Interface, Direction: l.Direction.String(), State: "left behind", What: l.What,
		})
	}
	for _, row := range out {
		if err := say.WriteJSON(s.Out, row); err != nil {
			return err
		}
	}
	return nil
}

// printStatus prints the status of a shaper.
func printStatus(p *say.Printer, about *kernel.About, st *Status) {
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
	p.Printf("  policy   %s (%s), loaded %s\n", st.Policy, say.Count(st.classes, "class"),
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
