// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
)

var update = flag.Bool("update", false, "write golden files and docs/configuration.md anew")

// golden compares with a file, or writes it with -update.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s is stale; run go test ./internal/config -update\n%s", path, d)
	}
}

func TestExplainShowsValueDefaultAndSource(t *testing.T) {
	l := amd64()
	cfg, report := load(t, l, header+"reconcile: {workers: 3}\nimages: {plainHTTP: [a, b]}\nmachineClasses:\n  inline:\n"+
		"  - {metadata: {name: small}, capabilities: {cpu: 1, memory: 1Gi}}\n", "--log-level=debug", "--zap-encoder=json")
	if report.Err() != nil {
		t.Fatal(report.Err())
	}
	for name, path := range map[string]string{"all": "", "section": "reconcile", "subsection": "hypervisor.qemu", "field": "reconcile.workers", "list": "images.plainHTTP", "alias": "log.format"} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := config.Explain(&b, cfg, l.Sources(), path); err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("testdata", "explain-"+name+".golden"), b.Bytes())
		})
	}
}

func TestWhatExplainWritesIsADocument(t *testing.T) {
	for _, path := range []string{"", "events", "hypervisor.qemu"} {
		cfg := config.Default()
		cfg.Events.Max = 7
		var b bytes.Buffer
		if err := config.Explain(&b, &cfg, nil, path); err != nil {
			t.Fatal(err)
		}
		if _, report := amd64().Load(reading(b.String()), "c.yaml"); len(report.Problems) > 0 {
			t.Errorf("%s: %v", path, report.Problems)
		}
	}
}

func TestExplainAsJSON(t *testing.T) {
	cfg := config.Default()
	var b bytes.Buffer
	if err := config.ExplainJSON(&b, &cfg, nil, "log"); err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join("testdata", "explain-json.golden"), b.Bytes())
	b.Reset()
	if err := config.ExplainJSON(&b, &cfg, nil, ""); err != nil {
		t.Fatal(err)
	}
	var all []config.Explanation
	if err := json.Unmarshal(b.Bytes(), &all); err != nil || len(all) != len(config.Fields()) {
		t.Errorf("got %d fields, %v", len(all), err)
	}
}

func TestExplainGuessesAtAnUnknownPath(t *testing.T) {
	cfg := config.Default()
	for path, want := range map[string]string{
		"reconcile.worker": "explain reconcile.worker: there is no such key; did you mean reconcile.workers?",
		"workers":          "explain workers: there is no such key; did you mean reconcile.workers?",
		"--address":        "explain --address: there is no such key; did you mean iri.address?",
		"recncile":         "explain recncile: there is no such key; did you mean reconcile?",
		"zzz":              "explain zzz: there is no such key; without a key all are listed",
	} {
		err := config.Explain(&strings.Builder{}, &cfg, nil, path)
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
