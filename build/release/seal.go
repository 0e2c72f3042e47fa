package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"runtime"
	"strings"
)

const (
	sums       = "checksums.txt"
	provenance = "provenance.json"
	repository = "https://github.com/singletonjob/operator"
)

// readKey returns nil if no file is given.
func readKey(file string) (*ecdsa.PrivateKey, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // a release without a key is valid
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		var parsed any
		switch block.Type {
		case "EC PRIVATE KEY":
			parsed, err = x509.ParseECPrivateKey(block.Bytes)
		case "PRIVATE KEY":
			parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		default: // the curve's parameters come before the key
			continue
		}
		if key, ok := parsed.(*ecdsa.PrivateKey); err == nil && ok && key.Curve == elliptic.P256() {
			return key, nil
		}
	}
	return nil, errNoKey
}

// seal writes the checksums and the provenance of all files, and signs both.
func (r release) seal(key *ecdsa.PrivateKey) error {
	files, err := r.sums()
	if err != nil {
		return err
	}
	text, err := r.provenance(files)
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.file(provenance), text, 0o644); err != nil {
		return err
	}
	if files, err = r.sums(); err != nil {
		return err
	}
	var list strings.Builder
	for _, f := range files {
		fmt.Fprintf(&list, "%s  %s\n", f.Digest.SHA256, f.Name)
	}
	if err := os.WriteFile(r.file(sums), []byte(list.String()), 0o644); err != nil || key == nil {
		return err
	}
	for _, name := range []string{sums, provenance} {
		if err := sign(r.file(name), key); err != nil {
			return err
		}
	}
	return nil
}

// subject is a file in the format of https://in-toto.io/Statement/v1.
type subject struct {
	Name   string `json:"name"`
	Digest struct {
		SHA256 string `json:"sha256"`
	} `json:"digest"`
}

func (r release) sums() ([]subject, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	var all []subject
	for _, entry := range entries {
		content, err := os.ReadFile(r.file(entry.Name()))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		s := subject{Name: entry.Name()}
		s.Digest.SHA256 = hex.EncodeToString(sum[:])
		all = append(all, s)
	}
	return all, nil
}

// provenance describes in the format of https://slsa.dev/spec/v1.0/provenance what was built from what. It contains no time and no
// machine, so that it is reproducible.
func (r release) provenance(files []subject) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1", "subject": files,
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":          repository + "/tree/main/build/release",
				"externalParameters": map[string]string{"version": r.version, "repository": r.repository, "url": r.url},
				"internalParameters": map[string]string{"go": runtime.Version()},
				"resolvedDependencies": []any{map[string]any{
					"uri": "git+" + repository + "@" + r.revision, "digest": map[string]string{"gitCommit": r.revision},
				}},
			},
			"runDetails": map[string]any{"builder": map[string]string{"id": repository + "/tree/main/build/release"}},
		},
	}, "", "  ")
}

// sign writes a base64 signature next to a file, in the format of `cosign sign-blob` and `openssl dgst -sign`. It is the
// deterministic signature of RFC 6979 for this key and content.
func sign(file string, key *ecdsa.PrivateKey) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	signature, err := key.Sign(nil, sum[:], crypto.SHA256)
	if err != nil {
		return err
	}
	return os.WriteFile(file+".sig", []byte(base64.StdEncoding.EncodeToString(signature)+"\n"), 0o644)
}
