package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// versionJSON is the output of version --json. The commit is omitted if the build does not record it.
type versionJSON struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified *bool  `json:"modified,omitempty"` // files differ from the commit
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func newVersion(s cli.Streams) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  shaper version",
		Args:    cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := build()
			if asJSON {
				return say.WriteJSON(s.Out, v)
			}
			_, err := fmt.Fprintf(s.Out, "shaper %s %s %s/%s\n", v.Version, v.Go, v.OS, v.Arch)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// version returns the version of the module, or the commit.
func version() string { return build().Version }

// build describes the running command.
func build() versionJSON {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return describe(info)
}

// describe describes a build. Its version is that of a tag, such as v0.1.0, or the ID of the
// commit. If files differ from the commit, it ends in +dirty.
func describe(info *debug.BuildInfo) versionJSON {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	v := versionJSON{
		Version: info.Main.Version, Commit: set["vcs.revision"],
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
	}
	if modified, err := strconv.ParseBool(set["vcs.modified"]); err == nil {
		v.Modified = &modified
	}
	switch {
	case v.Version != "" && v.Version != "(devel)":
	case v.Commit == "":
		v.Version = cmp.Or(v.Version, "unknown")
	default:
		v.Version = v.Commit[:min(12, len(v.Commit))]
		if v.Modified != nil && *v.Modified {
			v.Version += "+dirty"
		}
	}
	return v
}
