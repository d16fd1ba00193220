package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// statusJSON is what status --json prints, a line a shaper.
type statusJSON struct {
	Interface   string     `json:"interface"`
	Direction   string     `json:"direction"`
	State       string     `json:"state"`
	Attached    bool       `json:"attached"`
	Hook        string     `json:"hook"`
	XDPMode     string     `json:"xdp_mode,omitempty"`
	ProgramID   uint32     `json:"program_id"`
	Kernel      string     `json:"kernel"`
	Pacer       string     `json:"pacer,omitempty"`
	Policy      string     `json:"policy"`
	Since       time.Time  `json:"since"`
	Loaded      time.Time  `json:"loaded"`
	DryRun      bool       `json:"dry_run"`
	Pinned      bool       `json:"pinned"`
	Process     int        `json:"process"`
	Unconfirmed *time.Time `json:"unconfirmed_until,omitempty"`
	Peer        string     `json:"peer,omitempty"`

	classes int
}

func statusOf(sh live, policy *compiled) statusJSON {
	about := sh.Info()
	out := statusJSON{
		Interface: about.Interface, Direction: about.Direction.String(), State: state(sh), Attached: sh.Attached(),
		Hook: string(about.Place.Method), XDPMode: about.Place.Mode, ProgramID: uint32(about.Program), Kernel: kernelRelease(),
		Pacer: string(about.Pacer), Peer: about.Peer,
		Policy: policy.Name, classes: len(policy.Policy.Classes), Since: about.Since, Loaded: about.Loaded, DryRun: about.Dry, Pinned: about.Pinned, Process: about.Process,
	}
	if !about.Until.IsZero() {
		out.Unconfirmed = &about.Until
	}
	return out
}

func newStatus(s streams) *cobra.Command {
	var f liveFlags
	asJSON := false
	cmd := &cobra.Command{
		Use:     "status [IFACE]",
		GroupID: "look",
		Short:   "Say what is attached, and where",
		Example: "  shaper status",
		Args:    atMostOne,
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := listLive()
			if err != nil {
				return err
			}
			defer closeAll(list)
			if len(list) > 0 && len(args) > 0 || f.list != nil {
				chosen, err := f.choose(args)
				if err != nil {
					return err
				}
				defer closeAll(chosen)
				list = chosen
			}
			return status(s, list, asJSON)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON, a line a shaper")
	return cmd
}

func status(s streams, list []live, asJSON bool) error {
	p := &printer{w: s.out}
	if len(list) == 0 && !asJSON {
		p.printf("nothing is shaped here\n")
	}
	for i, sh := range list {
		policy, err := policyOf(sh.Info().Label)
		if err != nil {
			return err
		}
		st := statusOf(sh, policy)
		if asJSON {
			if err := writeJSON(s.out, st); err != nil {
				return err
			}
			continue
		}
		if i > 0 {
			p.printf("\n")
		}
		p.status(sh.Info(), &st)
	}
	return p.err
}

// status prints what a shaper is.
func (p *printer) status(about *kernel.About, st *statusJSON) {
	p.printf("%s: %s\n", where(about), st.State)
	if about.Place.Method == byTap {
		p.printf("  carried  between %s and %s\n", about.Interface, about.Peer)
	} else {
		p.printf("  hook     %s, program %d, kernel %s\n", hookOf(about), st.ProgramID, st.Kernel)
	}
	if about.Pacer != "" {
		p.printf("  queues   wait in %s\n", pacerOf(about))
	}
	p.printf("  policy   %s (%s), loaded %s\n", st.Policy, counted(st.classes, "class", "classes"), st.Loaded.Format(time.DateTime))
	p.printf("  since    %s (%v)\n", st.Since.Format(time.DateTime), time.Since(st.Since).Round(time.Second))
	if st.DryRun {
		p.printf("  dry run  packets are counted and pass as they are\n")
	}
	if about.GSO != nil {
		p.printf("  gso      capped; it was %d bytes\n", about.GSO.Max)
	}
	if st.Unconfirmed != nil {
		p.printf("  waits    for shaper confirm %s until %s\n", about.Interface, st.Unconfirmed.Format(time.DateTime))
	}
}
