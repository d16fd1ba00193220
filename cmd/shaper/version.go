package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// release is the version of this source, the latest of CHANGELOG.md.
const release = "v0.2.0"

// archived is the commit of an archive that git has written, such as the tarballs of GitHub: .gitattributes
// makes git replace the text.
const archived = "$Format:%H$"

// versionJSON is the output of version --json. The commit is omitted if the build does not record it.
type versionJSON struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified *bool  `json:"modified,omitempty"` // files differ from the commit
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// String returns the version and the short commit, such as v0.2.0 05416525d87d. The commit ends in
// +modified if files differ from it.
func (v versionJSON) String() string {
	if v.Commit == "" {
		return v.Version
	}
	text := v.Version + " " + v.Commit[:min(12, len(v.Commit))]
	if v.Modified != nil && *v.Modified {
		text += "+modified"
	}
	return text
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
			_, err := fmt.Fprintf(s.Out, "shaper %s %s %s/%s\n", v, v.Go, v.OS, v.Arch)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// version returns the version and the commit.
func version() string { return build().String() }

// build describes the running command.
func build() versionJSON {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return describe(info, archived)
}

// describe describes a build. A build in a clone records its commit; the version is that of the
// source, because the clone may lack the tags. A build by go install MODULE@VERSION records no
// commit; the version is the module's. A build in an archive of git has the archive's commit.
func describe(info *debug.BuildInfo, archived string) versionJSON {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	v := versionJSON{
		Version: release, Commit: set["vcs.revision"],
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
	}
	if modified, err := strconv.ParseBool(set["vcs.modified"]); err == nil {
		v.Modified = &modified
	}
	if v.Commit == "" && !strings.HasPrefix(archived, "$") {
		v.Commit = archived
	}
	if module := info.Main.Version; v.Commit == "" && module != "" && module != "(devel)" {
		v.Version = module
	}
	return v
}
