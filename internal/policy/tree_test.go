// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/ironcore-dev/cloud-hypervisor-provider"
)

// source is one Go file of the module, whatever its build constraints.
type source struct {
	path    string // from the root, with slashes
	dir     string // its room
	test    bool
	text    string
	syntax  *ast.File
	imports []imported
}

type imported struct {
	path string
	line int
}

// function is one function or method with its length in lines, signature and braces included.
type function struct {
	name, path  string
	line, lines int
}

// tree reads all Go files of the module. Directories the go command ignores are left out.
func tree(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	fset := token.NewFileSet()
	var all []source
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if file != root && ignored(file, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		s, err := read(fset, file)
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("no Go files below %s", root)
	}
	return fset, all
}

func ignored(dir, name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "vendor" {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod")) // a module of its own
	return err == nil
}

func read(fset *token.FileSet, file string) (source, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return source{}, err
	}
	name, err := filepath.Rel(root, file)
	if err != nil {
		return source{}, err
	}
	name = filepath.ToSlash(name)
	syntax, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, err
	}
	s := source{path: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), text: string(text), syntax: syntax}
	for _, spec := range syntax.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return source{}, err
		}
		s.imports = append(s.imports, imported{p, fset.Position(spec.Pos()).Line})
	}
	return s, nil
}

func functions(fset *token.FileSet, s source) []function {
	var all []function
	for _, d := range s.syntax.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		first, last := fset.Position(f.Pos()).Line, fset.Position(f.End()).Line
		all = append(all, function{f.Name.Name, s.path, first, last - first + 1})
	}
	return all
}
