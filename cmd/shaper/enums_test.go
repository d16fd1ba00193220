package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestEnumsHaveNames checks that every exported enumeration of a public package has a String method.
func TestEnumsHaveNames(t *testing.T) {
	integers := []string{
		"int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "byte",
	}
	var enums []string
	named := map[string]bool{}
	for _, room := range []string{"dataplane", "marker", "meter", "queue"} {
		err := filepath.WalkDir("../../"+room, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.Name() == "internal" || d.Name() == "testdata":
				return fs.SkipDir
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			of := func(name string) string { return filepath.Dir(path) + "." + name }
			for _, decl := range file.Decls {
				switch decl := decl.(type) {
				case *ast.FuncDecl:
					if decl.Recv != nil && decl.Name.Name == "String" {
						if receiver, ok := decl.Recv.List[0].Type.(*ast.Ident); ok {
							named[of(receiver.Name)] = true
						}
					}
				case *ast.GenDecl:
					for _, spec := range decl.Specs {
						s, ok := spec.(*ast.TypeSpec)
						if !ok || !s.Name.IsExported() {
							continue
						}
						if under, ok := s.Type.(*ast.Ident); ok && slices.Contains(integers, under.Name) {
							enums = append(enums, of(s.Name.Name))
						}
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, enum := range enums {
		if !named[enum] {
			t.Errorf("%s has no String method", enum)
		}
	}
	if len(enums) < 20 {
		t.Errorf("only %d types were found", len(enums))
	}
}

// TestEnumNames checks names, and that a value without one is written as a number.
func TestEnumNames(t *testing.T) {
	for _, test := range []struct {
		value fmt.Stringer
		want  string
	}{
		{queue.Full, "full"},
		{queue.Thin, "wred"},
		{queue.Stale, "codel"},
		{queue.Admit, "admit"},
		{queue.AdmitCE, "admit-ce"},
		{queue.ByPackets, "packets"},
		{dataplane.Done(0), "drop"},
		{dataplane.Pass, "pass"},
		{dataplane.Pass | dataplane.Marked | dataplane.Queued, "mark+queue"},
		{dataplane.Pass | dataplane.ECNSet, "ecn"},
		{dataplane.Waiting, "waiting"},
		{dataplane.L1, "l1"},
		{dataplane.CEOrDrop, "ce-or-drop"},
		{dataplane.ByHosts, "hosts"},
		{dataplane.ByTwoVLANs, "[svlan, cvlan]"},
		{dataplane.IPv6, "IPv6"},
		{dataplane.Malformed, "malformed"},
		{dataplane.CauseCoDel, "codel"},
		{replay.Out, "out"},
		{meter.StateAverage, "average"},
		{shared.FailRescue, "rescue"},
		{shared.Unguarded, "unguarded"},
		{lease.Split, "split"},
		{queue.Fate(math.MaxUint8), "Fate(255)"},
		{queue.Axis(math.MaxUint8), "Axis(255)"},
		{dataplane.Done(math.MaxUint8), "Done(255)"},
		{dataplane.LengthBase(math.MaxUint8), "LengthBase(255)"},
		{dataplane.ECN(math.MaxUint8), "ECN(255)"},
		{dataplane.KeyField(math.MaxUint8), "KeyField(255)"},
		{dataplane.CustomerKey(math.MaxUint8), "CustomerKey(255)"},
		{dataplane.PacketKind(math.MaxUint8), "Kind(255)"},
		{dataplane.Causes, "Cause(5)"},
		{replay.Way(math.MaxUint8), "Way(255)"},
		{meter.State(math.MaxUint8), "State(255)"},
		{shared.Fail(math.MaxUint8), "Fail(255)"},
		{shared.EventKind(math.MaxUint8), "EventKind(255)"},
		{lease.Case(-1), "Case(-1)"},
	} {
		if got := test.value.String(); got != test.want {
			t.Errorf("%T: got %q, want %q", test.value, got, test.want)
		}
	}
}
