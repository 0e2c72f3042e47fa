package fence

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/api")

// TestTheExportedAPI: users build on these packages, so no name or signature changes by accident. A change on purpose is an addition, or waits
// for a major version: go test ./fence -run TestTheExportedAPI -update.
func TestTheExportedAPI(t *testing.T) {
	for _, dir := range []string{".", "fenceetcd", "fencehttp", "fencekube", "fencenats", "fencepgx", "fenceredis", "fences3", "fencesql", "fencetest"} {
		got := exported(t, dir)
		file := filepath.Join("testdata", "api", strings.Replace(dir, ".", "fence", 1)+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("the exported API of %s is no longer what %s says; it is now\n%s", dir, file, got)
		}
	}
}

// exported returns the exported declarations of a package, without comments, unexported fields and values of variables.
func exported(t *testing.T, dir string) string {
	t.Helper()
	fset := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	pkg, err := doc.NewFromFiles(fset, files, "fence/"+dir)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	show := func(decl ast.Node) {
		if f, ok := decl.(*ast.FuncDecl); ok {
			f.Body = nil
		}
		if err := (&printer.Config{Mode: printer.UseSpaces, Tabwidth: 4}).Fprint(&out, fset, decl); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out)
	}
	values := func(all []*doc.Value) {
		for _, v := range all {
			show(v.Decl)
		}
	}
	funcs := func(all []*doc.Func) {
		for _, f := range all {
			show(f.Decl)
		}
	}
	values(pkg.Consts)
	values(pkg.Vars)
	funcs(pkg.Funcs)
	for _, typ := range pkg.Types {
		show(typ.Decl)
		values(typ.Consts)
		values(typ.Vars)
		funcs(typ.Funcs)
		funcs(typ.Methods)
	}
	return out.String()
}
