package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/singletonjob/operator/build/gotool"
)

// makeMaterials writes the bills of materials of the image and the plugin, from the information in the binaries.
func (r release) makeMaterials(ctx context.Context) error {
	for name, commands := range map[string][]string{
		"singletonjob-image": {"agent", "fence-proxy", "manager"}, "kubectl-singleton": {"kubectl-singleton"},
	} {
		infos, err := r.built(ctx, commands)
		if err != nil {
			return err
		}
		text, err := materials(name, r.number(), infos)
		if err != nil {
			return err
		}
		if err := os.WriteFile(r.file(name+"-"+r.number()+".cdx.json"), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// built returns the build information of the binaries. All architectures have the same modules, so it reads the one of Linux.
func (r release) built(ctx context.Context, commands []string) ([]*debug.BuildInfo, error) {
	work, err := os.MkdirTemp("", "singletonjob-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	var infos []*debug.BuildInfo
	for _, command := range commands {
		file := filepath.Join(work, command)
		if err := gotool.Release(ctx, r.version, "linux", "amd64", file, "./cmd/"+command).Run(); err != nil {
			return nil, fmt.Errorf("build cmd/%s: %w", command, err)
		}
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// materials is a bill of materials in the CycloneDX format.
func materials(name, version string, infos []*debug.BuildInfo) ([]byte, error) {
	found := map[string]cdx.Component{}
	add := func(path, version string) {
		purl := "pkg:golang/" + path + "@" + version
		found[purl] = cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: path, Version: version, PackageURL: purl}
	}
	for _, info := range infos {
		for _, module := range info.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			add(module.Path, module.Version)
		}
		add("std", strings.TrimPrefix(info.GoVersion, "go"))
	}
	var components []cdx.Component
	for _, purl := range slices.Sorted(maps.Keys(found)) {
		components = append(components, found[purl])
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: name, Name: name, Version: version}}
	bom.Components = &components
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return out.Bytes(), err
}
