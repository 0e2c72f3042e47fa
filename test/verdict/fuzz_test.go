package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMakeFuzz runs make fuzz over fuzz tests that fail in each way, and over one that does not.
func TestMakeFuzz(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The go command takes a result from its cache unless a file that the test has read is another one.
	for _, name := range []string{"Makefile", ".ci/fuzz"} {
		if _, err := os.ReadFile(filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	// Go packages in directories whose names begin with an underscore are in no pattern.
	if err := os.MkdirAll(filepath.Join(root, "dist"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(filepath.Join(root, "dist"), "_fuzz") //nolint:usetesting // it must be in the module
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for name, row := range map[string]struct {
		body string
		red  bool
	}{
		"nothing":        {`f.Fuzz(func(t *testing.T, b []byte) {})`, false},
		"seed":           {`f.Add([]byte("seed")); f.Fuzz(func(t *testing.T, b []byte) { if string(b) == "seed" { t.Error("it fails") } })`, true},
		"found":          {`f.Fuzz(func(t *testing.T, b []byte) { if len(b) > 0 { t.Error("it fails") } })`, true},
		"panic":          {`f.Fuzz(func(t *testing.T, b []byte) { if len(b) > 0 { panic("it fails") } })`, true},
		"own deadline":   {`f.Fuzz(func(t *testing.T, b []byte) { if len(b) > 0 { t.Error("context deadline exceeded") } })`, true},
		"does not build": {`nonsense`, true},
		"hangs once":     {`f.Fuzz(func(t *testing.T, b []byte) { if len(b) > 0 && os.Mkdir("hung", 0o755) == nil { select {} } })`, false},
		"ends once":      {`f.Fuzz(func(t *testing.T, b []byte) { if len(b) > 0 && os.Mkdir("hung", 0o755) == nil { os.Exit(1) } })`, false},
		"ends":           {`f.Fuzz(func(t *testing.T, b []byte) { if len(b) > 0 { os.Exit(1) } })`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			its := filepath.Join(dir, strings.ReplaceAll(name, " ", ""))
			if err := os.Mkdir(its, 0o755); err != nil {
				t.Fatal(err)
			}
			text := "package fuzzed\n\nimport (\n\"os\"\n\"testing\"\n)\n\nvar _ = os.Exit\n\nfunc FuzzIt(f *testing.F) { " + row.body + " }\n"
			if err := os.WriteFile(filepath.Join(its, "it_test.go"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			relative, err := filepath.Rel(root, its)
			if err != nil {
				t.Fatal(err)
			}
			command := exec.CommandContext(t.Context(), "make", "-C", root, "fuzz", "FUZZERS="+relative+":FuzzIt", "FUZZTIME=20x")
			out, err := command.CombinedOutput()
			if red := err != nil; red != row.red {
				t.Errorf("make fuzz is red: %v, want %v:\n%s", red, row.red, out)
			}
			if row.red && !strings.Contains(string(out), "FAILED "+relative+":FuzzIt") {
				t.Errorf("make fuzz does not name it:\n%s", out)
			}
		})
	}
}
