package main

import (
	"bytes"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// completeWords returns the words that a shell gets for a command line, without descriptions, and
// the directive, such as :4.
func completeWords(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(append([]string{cobra.ShellCompNoDescRequestCmd}, args...),
		cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs}); code != cli.ExitDone {
		t.Fatalf("%q: exit %d: %s", args, code, &errs)
	}
	return strings.Join(strings.Fields(out.String()), " ")
}

func TestComplete(t *testing.T) {
	t.Parallel()
	const (
		meterTypes = "fixed-window gcra sliding-counter sliding-log sliding-window srtcm token-bucket trtcm trtcm4115 tswtcm"
		captures   = "pcap pcapng cap pcap.gz pcapng.gz cap.gz"
		// Directives.
		noFiles   = ":4"
		files     = ":8" // files with one of the extensions
		inOrder   = ":36"
		continues = ":38" // no space behind
		anything  = ":0"
	)
	for _, tt := range []struct {
		line, want string
	}{
		{"re", "replay reload " + noFiles},
		{"help re", "replay reload " + noFiles},
		{"help budget ", "list show set unset drop " + noFiles},
		{"completion ", "bash zsh fish powershell " + noFiles},
		{"run --ho", "--hook " + noFiles},
		{"run eth0 --hook ", "auto tcx tc xdp " + inOrder},
		{"run eth0 --hook t", "tcx tc " + inOrder},
		{"run --hook=x", "xdp " + inOrder},
		{"run --pacer ", "auto fq htb " + inOrder},
		{"run --gso-limit ", "auto off " + inOrder},
		{"run --direction ", "egress ingress both " + inOrder},
		{"tap tap0 --direction ", "egress ingress both " + inOrder},
		{"stats --direction ", "egress ingress " + inOrder},
		{"replay in.pcap --direction ", "in out ingress egress " + inOrder},
		{"why in.pcap 1 --direction ", "in out ingress egress " + inOrder},
		{"replay in.pcap --engine ", "go bpf " + inOrder},
		{"replay in.pcap --meter ", meterTypes + " " + continues},
		{"compare in.pcap --meter tr", "trtcm trtcm4115 " + continues},
		{"replay in.pcap --meter srtcm\x00", "srtcm cir= srtcm cbs= srtcm ebs= " + continues},
		{"replay in.pcap --meter srtcm\x00cbs=1kB\x00c", "srtcm cbs=1kB cir= " + continues},
		{"replay in.pcap --meter none\x00", continues},
		{"compare in.pcap --meter x --me", "--meter " + noFiles},
		{"replay in.pcap --meter x --me", noFiles},
		{"check --yellow ", "pass drop queue dscp= pcp= mpls= mark= ecn=ce " + continues},
		{"check --red dr", "drop " + continues},
		{"check --length ", "l3 l2 l1 base= " + continues},
		{"check --queue ", "rate= limit= " + continues},
		{"run eth0 --policy ", "yaml yml " + files},
		{"run eth0 -p ", "yaml yml " + files},
		{"budget list --policy ", "yaml yml " + files},
		{"simulate --scenario ", "yaml yml " + files},
		{"check ", "yaml yml " + files},
		{"check a.yaml ", noFiles},
		{"diff ", "yaml yml " + files},
		{"diff a.yaml ", "yaml yml " + files},
		{"diff a.yaml b.yaml ", captures + " " + files},
		{"diff a.yaml b.yaml in.pcap ", noFiles},
		{"export ", "yaml yml " + files},
		{"import ", anything},
		{"import -o ", "yaml yml " + files},
		{"export -o ", anything},
		{"import --from c", "cisco cisco-show " + inOrder},
		{"export --to j", "junos " + inOrder},
		{"replay ", captures + " " + files},
		{"compare ", captures + " " + files},
		{"why ", captures + " " + files},
		{"why in.pcap ", noFiles},
		{"replay in.pcap -o ", captures + " " + files},
		{"replay in.pcap --decisions ", "csv jsonl " + files},
		{"replay in.pcap --report ", "html " + files},
		{"compare in.pcap --picture ", "svg " + files},
		{"budget list --store ", "redis:// rediss:// " + continues},
		{"budget list --password-file ", anything},
		{"budget show --policy ../../docs/shared.yaml ", "customer-42 " + noFiles},
		{"budget set --policy ../../docs/shared.yaml customer-42 ", "rate= burst= cir= cbs= pir= pbs= eir= ebs= " + continues},
		{"budget set --policy ../../docs/shared.yaml customer-42 rate=1mbit b", "burst= " + continues},
		{"serve ", ":16"},
		{"schema cus", "customer " + noFiles},
		{"schema customer ", "add list remove show " + noFiles},
		{"budget drop --policy none.yaml ", noFiles},
		{"budget show ", noFiles},
		{"run --for ", inOrder},
		{"run --metrics ", inOrder},
		{"version ", inOrder},
		{"simulate ", inOrder},
	} {
		args := strings.Split(tt.line, " ") // a space at the end begins a new word
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "\x00", " ") // a space in a word
		}
		if got := completeWords(t, args...); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.line, got, tt.want)
		}
	}
}

// TestCompleteInterfaces checks the completion with network interfaces.
func TestCompleteInterfaces(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"run", ""}, {"tap", "tap0", "--uplink", ""}} {
		if got := strings.Fields(completeWords(t, args...)); !slices.Contains(got, "lo") ||
			got[len(got)-1] != ":4" {
			t.Errorf("%q: %q, want lo among them", args, got)
		}
	}
	if got := completeWords(t, "run", "lo", ""); got != ":4" {
		t.Errorf("a second argument: %s", got)
	}
}

// TestCompleteShaped checks the completion with shaped interfaces, in a network namespace with
// a shaper tap.
func TestCompleteShaped(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // and never unlock it: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	policy, err := policyfile.Source{Name: "p.yaml", Text: "classes: [{name: a}]"}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var list []*live.LocalTap
	for _, d := range []dataplane.Direction{kernel.Egress, kernel.Ingress} {
		list = append(list,
			live.NewLocalTap("tap-complete", "", d, tap.NewActivePolicy(policy.Plan, 0), policy))
	}
	none := live.NewChanger(&changes.File{}, func() []live.Changeable { return nil })
	listener, err := live.ServeTap("tap-complete", list, budgets.New(tap.Now, t.Logf),
		&live.LockedChanger{Changer: none}, &live.Heard{Warn: t.Logf}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, command := range []string{"reload", "confirm", "detach", "status", "stats"} {
		if got := completeWords(t, command, ""); got != "tap-complete :4" {
			t.Errorf("%s: %s, want tap-complete", command, got)
		}
		if got := completeWords(t, command, "x", ""); got != ":4" {
			t.Errorf("%s: a second argument: %s", command, got)
		}
	}
}

// TestHelpTexts checks that texts of help, completions and man pages have no markup, and that
// flags with a value have a placeholder.
func TestHelpTexts(t *testing.T) {
	t.Parallel()
	root := newRoot(cli.Streams{})
	for path := range exitStatus {
		if cmd, _, err := root.Find(strings.Fields(path)[1:]); err != nil || cmd.CommandPath() != path {
			t.Errorf("the exit status is that of no command: %s", path)
		}
	}
	for path := range argumentValues {
		if cmd, _, err := root.Find(strings.Fields(path)[1:]); err != nil || cmd.CommandPath() != path {
			t.Errorf("arguments of no command are completed: %s", path)
		}
	}
	known := map[string]bool{}
	walkCommands(root, func(cmd *cobra.Command) {
		texts := []string{cmd.Short, cmd.Long, cmd.Example}
		for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			flags.VisitAll(func(flag *pflag.Flag) {
				known[flag.Name] = true
				texts = append(texts, flag.Usage)
				if name := flag.Value.Type(); flag.NoOptDefVal == "" &&
					strings.ToUpper(name[:1]) != name[:1] {
					t.Errorf("%s --%s %s: want a placeholder in capitals", cmd.CommandPath(), flag.Name, name)
				}
			})
		}
		for _, text := range texts {
			if strings.ContainsAny(text, "`\t") {
				t.Errorf("%s: %q has a back quote or a tab", cmd.CommandPath(), text)
			}
		}
	})
	for name := range flagValues {
		if !known[name] {
			t.Errorf("values of no flag are completed: --%s", name)
		}
	}
}
