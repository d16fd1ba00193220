package main

import (
	"net"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
)

// fixedWords completes with the given words.
func fixedWords(list ...string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// filesWith completes with the names of files that have one of the extensions.
func filesWith(extensions ...string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return extensions, cobra.ShellCompDirectiveFilterFileExt
	}
}

// wordStarts completes with beginnings of words, such as dscp=.
func wordStarts(list ...string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return list,
			cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace |
				cobra.ShellCompDirectiveKeepOrder
	}
}

// firstArgument completes the first argument only.
func firstArgument(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f(cmd, args, typed)
	}
}

// policiesThenCapture completes two policies and a capture.
func policiesThenCapture(
	cmd *cobra.Command, args []string, typed string,
) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0, 1:
		return policyFiles(cmd, args, typed)
	case 2:
		return captureFiles(cmd, args, typed)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// directories completes with the names of directories.
func directories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// completeMeter completes the type of a meter, and then its parameters.
func completeMeter(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace |
		cobra.ShellCompDirectiveKeepOrder
	at := strings.LastIndex(typed, " ") + 1
	if strings.TrimSpace(typed[:at]) == "" {
		return policyfile.MeterTypes(), directive
	}
	given := strings.Fields(typed[:at])
	var list []string
	for _, name := range policyfile.MeterParameters(given[0]) {
		if !slices.ContainsFunc(given, func(word string) bool { return strings.HasPrefix(word, name+"=") }) {
			list = append(list, typed[:at]+name+"=")
		}
	}
	return list, directive
}

// completePlatforms completes with the platforms of the language of --from, or of all languages.
func completePlatforms(
	cmd *cobra.Command, _ []string, _ string,
) (names []string, _ cobra.ShellCompDirective) {
	languages := routers.ImportNames()
	if from := cmd.Flag("from").Value.String(); from != "" {
		languages = []string{from}
	}
	for _, language := range languages {
		for _, row := range routers.Defaults(language) {
			if row.Platform != "" {
				names = append(names, row.Platform)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// completeGroups completes with the groups of users.
func completeGroups(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
	text, _ := os.ReadFile("/etc/group") // after an error there are no completions
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, ":")
		names = append(names, name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// anyFile completes with the names of all files.
func anyFile(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// completeInterfaces completes with the network interfaces.
func completeInterfaces(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	list, _ := net.Interfaces() // after an error there are no completions
	for _, i := range list {
		names = append(names, i.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

var (
	policyFiles  = filesWith("yaml", "yml")
	captureFiles = filesWith("pcap", "pcapng", "cap", "pcap.gz", "pcapng.gz", "cap.gz")
	actionWords  = wordStarts("pass", "drop", "queue", "dscp=", "pcp=", "mpls=", "mark=", "ecn=ce")
)

// argumentValues has the completions of arguments, by command path. liveArguments has those of the
// other commands.
var argumentValues = map[string]cobra.CompletionFunc{
	"shaper replay":  firstArgument(captureFiles),
	"shaper why":     firstArgument(captureFiles),
	"shaper compare": firstArgument(captureFiles),
	"shaper check":   firstArgument(policyFiles),
	"shaper diff":    policiesThenCapture,
	"shaper advise":  firstArgument(captureFiles),
	"shaper export":  firstArgument(policyFiles),
	"shaper import":  firstArgument(anyFile),
	"shaper schema":  completeOutputs,
}

// flagValues has the completions of flags' values, by flag.
var flagValues = map[string]cobra.CompletionFunc{
	"policy":   policyFiles,
	"scenario": policyFiles,
	"meter":    completeMeter,
	"green":    actionWords,
	"yellow":   actionWords,
	"red":      actionWords,
	"queue":    wordStarts("rate=", "limit="),
	"length":   wordStarts("l3", "l2", "l1", "base="),
	"hook":     fixedWords("auto", "tcx", "tc", "xdp"),
	"pacer":    fixedWords("auto", "fq", "htb"),
	"engine":   fixedWords("go", "bpf"),
	"show":     anyFile,
	"from":     fixedWords(routers.ImportNames()...),
	"to":       fixedWords(routers.ExportNames()...),
	"uplink":   completeInterfaces,
	"store":    wordStarts("redis://", "rediss://"),

	"platform": completePlatforms,
	"changes":  anyFile,
	"file":     anyFile,
	"state":    directories,

	"control-group":      completeGroups,
	"control-read-group": completeGroups,

	"gso-limit": fixedWords("auto", "off"),

	"control-read": anyFile,
	"output":       captureFiles,
	"decisions":    filesWith("csv", "jsonl"),
	"report":       filesWith("html"),
	"picture":      filesWith("svg"),
	"annotate":     filesWith("pcapng"),
	"ca-file":      anyFile,
	"control":      anyFile,
	"cert-file":    anyFile,
	"key-file":     anyFile,

	"password-file": anyFile,
}

// matching filters the words of f by the typed text.
func matching(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		list, directive := f(cmd, args, typed)
		if directive&(cobra.ShellCompDirectiveFilterFileExt|cobra.ShellCompDirectiveFilterDirs) == 0 {
			list = slices.DeleteFunc(slices.Clone(list),
				func(word string) bool { return !strings.HasPrefix(word, typed) })
		}
		return list, directive
	}
}

// completeValues adds the completions of a command's arguments and flags.
func completeValues(cmd *cobra.Command) {
	f := argumentValues[cmd.CommandPath()]
	if f == nil {
		f = liveArguments[cmd.CommandPath()]
	}
	switch {
	case f != nil:
		cmd.ValidArgsFunction = matching(f)
	case cmd.ValidArgsFunction != nil:
		cmd.ValidArgsFunction = matching(cmd.ValidArgsFunction)
	case !cmd.HasSubCommands():
		cmd.ValidArgsFunction = fixedWords()
	}
	for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(flag *pflag.Flag) {
			f := flagValues[flag.Name]
			if f == nil {
				f = liveFlags[flag.Name]
			}
			switch {
			case flag.Name == "direction" && strings.Contains(flag.Usage, "both"):
				f = fixedWords("egress", "ingress", "both")
			case flag.Name == "direction" && strings.Contains(flag.Usage, "in or out"):
				f = fixedWords("in", "out", "ingress", "egress")
			case flag.Name == "direction":
				f = fixedWords("egress", "ingress")
			case flag.Name == "output" && strings.Contains(flag.Usage, "policy"):
				f = policyFiles
			case flag.Name == "output" && strings.Contains(flag.Usage, "configuration"):
				f = anyFile
			case f == nil:
				f = fixedWords()
			}
			if flag.NoOptDefVal == "" { // it needs a value
				// fails if the flag has completions already
				_ = cmd.RegisterFlagCompletionFunc(flag.Name, matching(f))
			}
		})
	}
}
