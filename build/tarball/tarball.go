// Package tarball writes archives whose bytes depend only on names, modes and contents, so that a release is reproducible.
package tarball

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
)

// File is a regular file in an archive.
type File struct {
	Name    string
	Mode    int64
	Content []byte
}

// Write writes files in the given order.
func Write(to io.Writer, files []File) error {
	all := tar.NewWriter(to)
	for _, f := range files {
		if err := all.WriteHeader(&tar.Header{Name: f.Name, Mode: f.Mode, Size: int64(len(f.Content)), Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		if _, err := all.Write(f.Content); err != nil {
			return err
		}
	}
	return all.Close()
}

// Compressed is the gzipped output of Write.
func Compressed(files []File) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	if err := Write(zip, files); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Read returns the contents of an archive, by name.
func Read(from io.Reader) (map[string][]byte, error) {
	files, all := map[string][]byte{}, tar.NewReader(from)
	for {
		header, err := all.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[header.Name], err = io.ReadAll(all); err != nil {
			return nil, err
		}
	}
}
