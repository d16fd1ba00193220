package main

import (
	"runtime/debug"
	"testing"
)

func TestVersion(t *testing.T) {
	set := func(pairs ...string) (out []debug.BuildSetting) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return out
	}
	const commit = "05416525d87dbe8e88698df474565d04366d1744"
	for _, tt := range []struct {
		module   string
		settings []debug.BuildSetting
		want     string
	}{
		{"v0.1.0", set("vcs.revision", commit, "vcs.modified", "false"), "v0.1.0"},
		{"v0.1.0+dirty", set("vcs.revision", commit, "vcs.modified", "true"), "v0.1.0+dirty"},
		{"(devel)", set("vcs.modified", "false", "vcs.revision", commit), "05416525d87d"},
		{"", set("vcs.modified", "true", "vcs.revision", commit), "05416525d87d+dirty"},
		{"", set("vcs.revision", "0541"), "0541"},
		{"(devel)", nil, "(devel)"}, // go build -buildvcs=false, go test
		{"", nil, "unknown"},
	} {
		if got := versionOf(&debug.BuildInfo{Main: debug.Module{Version: tt.module}, Settings: tt.settings}); got != tt.want {
			t.Errorf("%q, %v: %s, want %s", tt.module, tt.settings, got, tt.want)
		}
	}
}
