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
	Policy      string     `json:"policy"`
	Since       time.Time  `json:"since"`
	Loaded      time.Time  `json:"loaded"`
	DryRun      bool       `json:"dry_run"`
	Pinned      bool       `json:"pinned"`
	Process     int        `json:"process"`
	Unconfirmed *time.Time `json:"unconfirmed_until,omitempty"`
}

func statusOf(sh *kernel.Shaper, policy string) statusJSON {
	out := statusJSON{
		Interface: sh.Interface, Direction: sh.Direction.String(), State: state(sh), Attached: sh.Attached(),
		Hook: string(sh.Place.Method), XDPMode: sh.Place.Mode, ProgramID: uint32(sh.Program), Kernel: kernelRelease(),
		Policy: policy, Since: sh.Since, Loaded: sh.Loaded, DryRun: sh.Dry, Pinned: sh.Pinned, Process: sh.Process,
	}
	if !sh.Until.IsZero() {
		out.Unconfirmed = &sh.Until
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
			list, err := kernel.List()
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

func status(s streams, list []*kernel.Shaper, asJSON bool) error {
	p := &printer{w: s.out}
	if len(list) == 0 && !asJSON {
		p.printf("nothing is shaped here\n")
	}
	for i, sh := range list {
		policy, err := policyOf(sh.Label)
		if err != nil {
			return err
		}
		st := statusOf(sh, policy.Name)
		if asJSON {
			if err := writeJSON(s.out, st); err != nil {
				return err
			}
			continue
		}
		if i > 0 {
			p.printf("\n")
		}
		p.status(sh, &st)
	}
	return p.err
}

// status prints what a shaper is.
func (p *printer) status(sh *kernel.Shaper, st *statusJSON) {
	p.printf("%s: %s\n", where(&sh.About), st.State)
	p.printf("  hook     %s, program %d, kernel %s\n", hookOf(&sh.About), st.ProgramID, st.Kernel)
	p.printf("  policy   %s (%s), loaded %s\n", st.Policy, counted(len(sh.Classes), "class", "classes"), st.Loaded.Format(time.DateTime))
	p.printf("  since    %s (%v)\n", st.Since.Format(time.DateTime), time.Since(st.Since).Round(time.Second))
	if st.DryRun {
		p.printf("  dry run  packets are counted and pass as they are\n")
	}
	if sh.GSO != nil {
		p.printf("  gso      capped; it was %d bytes\n", sh.GSO.Max)
	}
	if st.Unconfirmed != nil {
		p.printf("  waits    for shaper confirm %s until %s\n", sh.Interface, st.Unconfirmed.Format(time.DateTime))
	}
}
