// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
)

const docsTop = `<!-- Written by go test ./internal/config -update from the table of fields. Do not edit by hand. -->
# Configuration

The daemon reads one YAML document, named with ` + "`--config`" + `, and lets every value be overridden by a flag.
Without a document, the defaults below hold. Only the machine classes have no default: serving needs them.

` + "```yaml" + `
apiVersion: ` + config.APIVersion + `
kind: ` + config.Kind + `
machineClasses:
  file: /etc/cloud-hypervisor-provider/machine-classes.yaml
reconcile:
  workers: 30
` + "```" + `

A flag wins over the document, the document over the default. Two commands help:

- ` + "`config validate`" + ` says everything that is wrong, each with file, line, column and path, and mostly what to write instead.
- ` + "`config explain`" + ` prints every value with its meaning, its default and where it comes from, as a document that can be
  used itself; ` + "`config explain reconcile.workers`" + ` prints one.

## Rules

- A key that is not in the tables below is an error, and so are a key that stands twice, a second document in the file, and a
  value of another type. Anchors, aliases, merge keys and tags are refused: what stands at a line is what counts there.
- A **duration** has a unit: ` + "`30s`, `5m`, `1h30m`" + `.
- A **size** is a Kubernetes quantity in bytes: ` + "`512Mi` (powers of 1024), `512M` (powers of 1000), `4096`" + `. Where
  a **percent** may stand instead, it is whole: ` + "`20%`" + `.
- A **path** is absolute. Given as a flag, a relative one starts from the current directory.
- A **list** given as a flag separates its items with commas, and the flag can be repeated. It replaces the document's list.
- Values that contradict each other are errors before anything starts. A **warning** is a choice that works only
  under a condition, such as a setting for QEMU while the hypervisor is still to be chosen.
`

const docsClasses = `
The file, and the inline list likewise, holds MachineClass objects in YAML or JSON, as libvirt-provider reads them:

` + "```yaml" + `
- apiVersion: compute.ironcore.dev/v1alpha1
  kind: MachineClass
  metadata:
    name: t3-small
  capabilities:
    cpu: 2
    memory: 4Gi
` + "```" + `

Each class needs a name of its own and ` + "`cpu` and `memory`" + ` above zero; quantities are rounded up to whole numbers. Any other
resource name may be added, and a class that needs what the server does not have is offered zero times. The pool controller matches
a class by name and equal capabilities, so they must be the same here as in the cluster.
`

const docsCapacity = `
How many machines of a class the server offers is the smallest of

- (host CPUs − ` + "`reservedCPUs`) × `cpuOvercommit`" + ` ÷ the class' CPUs,
- (host memory − ` + "`reservedMemory`) ÷ (the class' memory + `memoryOverheadPerMachine`)" + `,
- for every other resource, what the server has ÷ what the class needs, and
- ` + "`maxMachines`" + `, unless that is 0,

rounded down and counted as if no machine were running: the pool controller subtracts those itself.
`

var sectionTitles = map[string]string{
	"": "Directories", "iri": "IRI socket", "hypervisor": "Hypervisor", "machineClasses": "Machine classes",
	"capacity": "Capacity", "network": "Network", "volumes": "Volumes", "images": "Images", "reconcile": "Reconciliation",
	"shutdown": "Shutdown", "events": "Machine events", "guestAgent": "Guest agent", "console": "Console", "streaming": "Remote consoles", "servers": "HTTP servers", "log": "Log",
}

const docsNetworks = `
The networks of ` + "`providernet`" + ` are named in the document like this, and on a command line like
` + "`--network-providernet-network=internet,bridge=br0,mtu=9000`" + `, once for each:

` + "```yaml" + `
network:
  plugin: providernet
  providernet:
    networks:
      internet: {bridge: br0, mtu: 9000, isolated: true}
      lab:
        managed: {subnet: 10.1.2.0/24, dns: [9.9.9.9]}
` + "```" + `

[networking](networking/providernet.md) says what each key means.
`

var sectionText = map[string]string{"machineClasses": docsClasses, "capacity": docsCapacity, "network": docsNetworks}

func TestTheOperatorsPageIsUpToDate(t *testing.T) {
	var b strings.Builder
	b.WriteString(docsTop)
	cfg := config.Default()
	last := "none"
	closing := ""
	for _, e := range explanations(t, &cfg) {
		section := e.Path[:max(0, strings.Index(e.Path, "."))]
		if section != last {
			b.WriteString(closing)
			title := sectionTitles[section]
			if title == "" {
				t.Errorf("section %q has no title", section)
			}
			fmt.Fprintf(&b, "\n## %s\n\n| key | flag | value | default | |\n|---|---|---|---|---|\n", title)
			last, closing = section, sectionText[section]
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s |\n", e.Path, e.Flag, form(e), code(e.Default), cell(e.Doc))
	}
	b.WriteString(closing)
	b.WriteString(aliases())
	golden(t, filepath.Join("..", "..", "docs", "configuration.md"), []byte(b.String()))
}

func explanations(t *testing.T, cfg *config.Config) []config.Explanation {
	t.Helper()
	all, err := config.Explanations(cfg, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func form(e config.Explanation) string {
	if len(e.Allowed) > 0 {
		return "`" + strings.Join(e.Allowed, "`, `") + "`"
	}
	parts := []string{string(e.Type)}
	if e.Limits != "" {
		parts = append(parts, e.Limits)
	}
	if e.Empty != "" {
		parts = append(parts, "empty: "+e.Empty)
	}
	return cell(strings.Join(parts, "; "))
}

func code(texts []string) string {
	if len(texts) == 0 || texts[0] == "" {
		return "empty"
	}
	return "`" + strings.Join(texts, ", ") + "`"
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func aliases() string {
	var b strings.Builder
	b.WriteString("\n## Names from other providers\n\nCommand lines written for libvirt-provider and its kin keep working where a flag means the same.\n" +
		"Many of its names are the names of the flags above; these are accepted beside them:\n\n| flag | same as | values |\n|---|---|---|\n")
	for _, f := range config.Fields() {
		for _, a := range f.Aliases {
			var values []string
			for theirs, ours := range a.Values {
				if theirs != ours {
					theirs += "` is `" + ours
				}
				values = append(values, "`"+theirs+"`")
			}
			slices.Sort(values)
			if values == nil {
				values = []string{"the same"}
			}
			fmt.Fprintf(&b, "| `--%s` | `--%s` | %s |\n", a.Name, f.Flag, strings.Join(values, ", "))
		}
	}
	b.WriteString("\nA flag and its other name may be given together only with the same value.\n")
	return b.String()
}
