package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// descriptor names a blob of an image:
// https://github.com/opencontainers/image-spec/blob/v1.1.0/descriptor.md.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// layout is an OCI image layout, in the order in which its files are written.
type layout struct {
	names []string
	files map[string][]byte
}

func (l *layout) add(name string, content []byte) {
	if l.files[name] == nil {
		l.names = append(l.names, name)
	}
	l.files[name] = content
}

// blob adds content, and returns its descriptor.
func (l *layout) blob(mediaType string, content []byte) descriptor {
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	l.add("blobs/sha256/"+sum, content)
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(content)}
}

// document adds a JSON document as a blob.
func (l *layout) document(mediaType string, value any) (descriptor, error) {
	text, err := json.Marshal(value)
	return l.blob(mediaType, text), err
}

// writeImage writes an image for all architectures, as an archive of an OCI layout.
func (s *source) writeImage() (string, error) {
	l := &layout{files: map[string][]byte{}}
	l.add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	var manifests []descriptor
	for _, arch := range s.architectures {
		manifest, err := s.addPlatform(l, arch)
		if err != nil {
			return "", err
		}
		manifests = append(manifests, manifest)
	}
	index, err := l.document(indexType, map[string]any{
		"schemaVersion": 2, "mediaType": indexType, "manifests": manifests, "annotations": s.labels(),
	})
	if err != nil {
		return "", err
	}
	index.Annotations = map[string]string{"org.opencontainers.image.ref.name": s.tag()}
	text, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{index},
	})
	if err != nil {
		return "", err
	}
	l.add("index.json", text)
	path := filepath.Join(s.out, fmt.Sprintf("shaper_%s_oci.tar", s.version))
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := s.writeLayout(f, l); err != nil {
		return "", err
	}
	return path, f.Close()
}

// tag is the version as a tag of an image, which has no +.
func (s *source) tag() string { return strings.ReplaceAll(s.version, "+", "-") }

func (s *source) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       "shaper",
		"org.opencontainers.image.description": "traffic shaper with exact token buckets, in eBPF",
		"org.opencontainers.image.version":     s.version,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      repository,
		"org.opencontainers.image.created":     s.date.Format(time.RFC3339),
	}
	if s.commit != "" {
		labels["org.opencontainers.image.revision"] = s.commit
	}
	return labels
}

// addPlatform adds the image for an architecture, and returns its manifest.
func (s *source) addPlatform(l *layout, arch string) (descriptor, error) {
	dir, err := os.MkdirTemp("", "shaper-release-")
	if err != nil {
		return descriptor{}, err
	}
	defer os.RemoveAll(dir)
	for from, to := range map[string]string{
		s.binary(arch): "usr/bin/shaper",
		filepath.Join(s.root, "docs/etc/shaper.yaml"): "etc/shaper/shaper.yaml",
		filepath.Join(s.root, "LICENSE"):              documents + "/LICENSE",
		filepath.Join(s.root, "THIRD_PARTY"):          documents + "/THIRD_PARTY",
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			return descriptor{}, err
		}
		if err := writeFile(filepath.Join(dir, to), text); err != nil {
			return descriptor{}, err
		}
	}
	// Mount points of bpffs, and of the directory that shapers of the host share.
	for _, name := range []string{"run/shaper", "sys/fs/bpf", "var/lib/shaper", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return descriptor{}, err
		}
	}
	if err := os.Chmod(filepath.Join(dir, "usr/bin/shaper"), 0o755); err != nil {
		return descriptor{}, err
	}
	var files bytes.Buffer
	if err := s.pack(&files, dir); err != nil {
		return descriptor{}, err
	}
	packed, err := compress(files.Bytes())
	if err != nil {
		return descriptor{}, err
	}
	config, err := l.document(configType, map[string]any{
		"created": s.date.Format(time.RFC3339), "architecture": arch, "os": "linux",
		"config": map[string]any{
			"Entrypoint": []string{"/usr/bin/shaper"}, "Cmd": []string{"help"},
			"Env": []string{"PATH=/usr/bin"}, "WorkingDir": "/", "Labels": s.labels(),
		},
		"rootfs": map[string]any{
			"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(files.Bytes()))},
		},
		"history": []any{map[string]any{"created": s.date.Format(time.RFC3339), "created_by": "make image"}},
	})
	if err != nil {
		return descriptor{}, err
	}
	manifest, err := l.document(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config,
		"layers": []descriptor{l.blob(layerType, packed)}, "annotations": s.labels(),
	})
	manifest.Platform = &platform{Architecture: arch, OS: "linux"}
	return manifest, err
}

// writeLayout writes the files of a layout to a tar archive.
func (s *source) writeLayout(w io.Writer, l *layout) error {
	archive := tar.NewWriter(w)
	for _, name := range []string{"blobs/", "blobs/sha256/"} {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: s.date}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
	}
	for _, name := range l.names {
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(l.files[name])), ModTime: s.date}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(l.files[name]); err != nil {
			return err
		}
	}
	return archive.Close()
}
