package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// spdxPackage is a part of the program: https://spdx.github.io/spdx-spec/v2.3/package-information/.
type spdxPackage struct {
	ID         string         `json:"SPDXID"`
	Name       string         `json:"name"`
	Version    string         `json:"versionInfo,omitempty"`
	Download   string         `json:"downloadLocation"`
	Analyzed   bool           `json:"filesAnalyzed"`
	Concluded  string         `json:"licenseConcluded"`
	Declared   string         `json:"licenseDeclared"`
	Copyright  string         `json:"copyrightText"`
	References []spdxExternal `json:"externalRefs,omitempty"`
}

// spdxExternal identifies a package elsewhere.
type spdxExternal struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelation struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

// license is a phrase of a license's text, and its identifier.
type license struct{ phrase, id string }

var licenses = []license{
	{"Apache License Version 2.0", "Apache-2.0"},
	{"Apache License, Version 2.0", "Apache-2.0"},
	{"Mozilla Public License", "MPL-2.0"},
	{"Neither the name of", "BSD-3-Clause"},
	{"Redistribution and use in source and binary forms", "BSD-2-Clause"},
	{"Permission to use, copy, modify, and/or distribute", "ISC"},
	{"Permission is hereby granted, free of charge", "MIT"},
}

// partLicenses returns the licenses of all parts, from THIRD_PARTY: its list of parts, and each text below
// the names of the parts that have it.
func partLicenses(thirdParty string) (map[string]string, error) {
	rule := "\n" + strings.Repeat("=", 80) + "\n"
	blocks := strings.Split(thirdParty, rule)
	of := map[string][]string{}
	var errs []error
	for at := 1; at+1 < len(blocks); at += 2 {
		text := strings.Join(strings.Fields(blocks[at+1]), " ")
		ids := licensesOf(text)
		for line := range strings.Lines(blocks[at]) {
			part, file, _ := strings.Cut(strings.TrimSpace(line), ": ")
			file = strings.ToLower(filepath.Base(file))
			switch {
			case strings.HasPrefix(file, "patents") || strings.HasPrefix(file, "notice"): // no license
			case len(ids) == 0:
				errs = append(errs, fmt.Errorf("THIRD_PARTY: unknown license of %s", part))
			default:
				of[part] = append(of[part], ids...)
			}
		}
	}
	expressions := map[string]string{}
	for part, ids := range of {
		slices.Sort(ids)
		expressions[part] = strings.Join(slices.Compact(ids), " AND ")
	}
	return expressions, errors.Join(errs...)
}

// licensesOf returns the licenses in a text. The phrase of two clauses of BSD is also in three clauses.
func licensesOf(text string) (ids []string) {
	for _, l := range licenses {
		if strings.Contains(text, l.phrase) && !(l.id == "BSD-2-Clause" && slices.Contains(ids, "BSD-3-Clause")) {
			ids = append(ids, l.id)
		}
	}
	return ids
}

var noID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// writeSBOM writes the list of all parts of a binary, from what the linker recorded in it, as SPDX 2.3.
func (s *source) writeSBOM(arch string) (string, error) {
	info, err := buildinfo.ReadFile(s.binary(arch))
	if err != nil {
		return "", err
	}
	thirdParty, err := os.ReadFile(filepath.Join(s.root, "THIRD_PARTY"))
	if err != nil {
		return "", err
	}
	text, err := s.sbom(info, string(thirdParty), arch)
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.out, fmt.Sprintf("shaper_%s_linux_%s.spdx.json", s.version, arch))
	return path, os.WriteFile(path, append(text, '\n'), 0o644)
}

func (s *source) sbom(info *buildinfo.BuildInfo, thirdParty, arch string) ([]byte, error) {
	licenseOf, err := partLicenses(thirdParty)
	if err != nil {
		return nil, err
	}
	packages := []spdxPackage{{
		ID: "SPDXRef-shaper", Name: "shaper", Version: s.version, Download: repository,
		Concluded: "Apache-2.0", Declared: "Apache-2.0",
	}}
	// add adds a part, by its name in THIRD_PARTY.
	add := func(part, name, version, download, locator string) {
		id := licenseOf[part]
		if id == "" {
			err = errors.Join(err, fmt.Errorf("THIRD_PARTY has no license of %s: make third-party", part))
		}
		delete(licenseOf, part)
		p := spdxPackage{
			ID: "SPDXRef-" + noID.ReplaceAllString(name, "-"), Name: name, Version: version, Download: download,
			Concluded: id, Declared: id,
		}
		if locator != "" {
			p.References = []spdxExternal{{"PACKAGE-MANAGER", "purl", locator}}
		}
		packages = append(packages, p)
	}
	release := strings.TrimPrefix(info.GoVersion, "go")
	add("The Go standard library", "stdlib", release, "https://go.dev/dl/", "pkg:golang/stdlib@"+release)
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		add(m.Path+" "+m.Version, m.Path, m.Version, "https://"+m.Path, "pkg:golang/"+m.Path+"@"+m.Version)
	}
	// The rest of THIRD_PARTY are files in the binary, and modules of the other architecture.
	for _, part := range slices.Sorted(maps.Keys(licenseOf)) {
		if !strings.Contains(part, " ") {
			add(part, part, "", "NOASSERTION", "")
		}
	}
	if err != nil {
		return nil, err
	}
	relations := []spdxRelation{{"SPDXRef-DOCUMENT", "DESCRIBES", packages[0].ID}}
	for at := range packages {
		packages[at].Copyright = "NOASSERTION"
		if at > 0 {
			relations = append(relations, spdxRelation{packages[0].ID, "CONTAINS", packages[at].ID})
		}
	}
	name := fmt.Sprintf("shaper-%s-linux-%s", s.version, arch)
	return json.MarshalIndent(map[string]any{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
		"documentNamespace": fmt.Sprintf("%s/sbom/%s-%s", repository, name, s.commit),
		"creationInfo": map[string]any{
			"created": s.date.Format(time.RFC3339), "creators": []string{"Tool: shaper-release"},
		},
		"packages": packages, "relationships": relations,
	}, "", "  ")
}
