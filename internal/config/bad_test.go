// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
)

// The bodies below start at line 3: the header takes two lines.
func TestBadDocumentsAreReportedWithPlacePathAndSuggestion(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"a key that does not exist": {"reconcile:\n  worker: 3\n", `
c.yaml:4:3: error: reconcile.worker: unknown key; did you mean workers?`},
		"a key in another style": {"state-dir: /a\n", `
c.yaml:3:1: error: state-dir: unknown key; did you mean stateDir?`},
		"a key in the wrong section": {"workers: 3\n", `
c.yaml:3:1: error: workers: unknown key; did you mean reconcile.workers?`},
		"a flag's name as key": {"supported-machine-classes: /a\n", `
c.yaml:3:1: error: supported-machine-classes: unknown key; did you mean machineClasses.file?`},
		"a key beyond guessing": {"flux: 3\n", `
c.yaml:3:1: error: flux: unknown key`},
		"a string for an integer": {"reconcile: {workers: many}\n", `
c.yaml:3:22: error: reconcile.workers: want an integer, found the string "many"`},
		"an integer in quotes": {"reconcile: {workers: \"15\"}\n", `
c.yaml:3:22: error: reconcile.workers: want an integer, found the string "15"; remove the quotes`},
		"an integer in hex": {"reconcile: {workers: 0x10}\n", `
c.yaml:3:22: error: reconcile.workers: "0x10" is not a decimal integer`},
		"an integer out of range": {"reconcile: {workers: 0}\n", `
c.yaml:3:22: error: reconcile.workers: 0 is below the least value of 1`},
		"an integer beyond 64 bits": {"reconcile: {workers: 99999999999999999999}\n", `
c.yaml:3:22: error: reconcile.workers: "99999999999999999999" is not a decimal integer`},
		"a duration without unit": {"iri: {requestTimeout: 30}\n", `
c.yaml:3:23: error: iri.requestTimeout: want a duration such as 30s or 5m, found the integer 30; write 30s if seconds are meant`},
		"a size with B": {"console:\n  logMaxBytes: 8MB\n", `
c.yaml:4:16: error: console.logMaxBytes: "8MB" is not a quantity such as 4, 500m or 512Mi; write 8Mi (powers of 1024) or 8M (powers of 1000)`},
		"half a byte": {"console:\n  logMaxBytes: 1500m\n", `
c.yaml:4:16: error: console.logMaxBytes: "1500m" is not a whole number of bytes; write 1500Mi (powers of 1024) or 1500M (powers of 1000)`},
		"a boolean for a choice": {"log: {level: true}\n", `
c.yaml:3:14: error: log.level: want a string, found the boolean true; put it in quotes`},
		"a choice misspelt": {"hypervisor: {driver: qmeu}\n", `
c.yaml:3:22: error: hypervisor.driver: "qmeu" is none of auto, cloud-hypervisor, qemu; did you mean qemu?`},
		"a scalar for a section": {"log: debug\n", `
c.yaml:3:6: error: log: want a mapping, found the string "debug"; its keys are level, format`},
		"a section for a scalar": {"stateDir: {path: /a}\n", `
c.yaml:3:11: error: stateDir: want an absolute path, found a mapping`},
		"a key without value": {"stateDir:\n", `
c.yaml:3:11: error: stateDir: the key has no value; remove the key to get the default`},
		"a string for a list": {"images: {plainHTTP: localhost}\n", `
c.yaml:3:21: error: images.plainHTTP: want a list of strings, found the string "localhost"; write ["localhost"]`},
		"a URL in a list of hosts": {"images:\n  plainHTTP:\n  - a\n  - http://b:5000/v2\n  - 5\n", `
c.yaml:6:5: error: images.plainHTTP[1]: "http://b:5000/v2" is a URL, want host or host:port; write b:5000
c.yaml:7:5: error: images.plainHTTP[2]: want a string, found the integer 5`},
		"a budget with B": {"images: {budget: 50GB}\n", `
c.yaml:3:18: error: images.budget: "50GB" is not a quantity such as 4, 500m or 512Mi; write 50Gi (powers of 1024) or 50G (powers of 1000)`},
		"a budget of nothing": {"images: {budget: 0}\n", `
c.yaml:3:18: error: images.budget: 0 is below the least value of 1Mi`},
		"a budget beyond all": {"images: {budget: 101%}\n", `
c.yaml:3:18: error: images.budget: 101% is above the greatest value of 100%`},
		"a broken share": {"images: {budget: 12.5%, reserve: \"-5%\"}\n", `
c.yaml:3:18: error: images.budget: "12.5%" is not a share such as 20%
c.yaml:3:34: error: images.reserve: "-5%" is not a share such as 20%`},
		"a reserve of nothing": {"images: {reserve: 0%}\n", `
c.yaml:3:19: error: images.reserve: 0% is below the least value of 1%`},
		"a reserve that is too small": {"images: {reserve: 1Mi}\n", `
c.yaml:3:19: error: images.reserve: 1Mi is below the least value of 64Mi`},
		"no reserve": {"images: {reserve: \"\"}\n", `
c.yaml:3:19: error: images.reserve: the value is empty; remove the key to get the default`},
		"a list for a budget": {"images: {budget: [1Gi]}\n", `
c.yaml:3:18: error: images.budget: want a size such as 50Gi or a share such as 20%, found a list`},
		"a key twice": {"log: {level: info}\nstateDir: /a\nlog: {level: debug}\n", `
c.yaml:5:1: error: log: the key stands twice, first at line 3`},
		"two documents": {"---\nkind: Other\n", `
c.yaml:4:1: error: a second document starts here; keep one document in the file`},
		"broken YAML": {"log: {level: info\n", `
c.yaml:3:6: error: broken YAML: could not find flow mapping end token '}'`},
		"an anchor": {"stateDir: &a /a\nruntimeDir: *a\n", `
c.yaml:3:11: error: stateDir: anchors, aliases and merge keys are not supported; write the value out
c.yaml:4:13: error: runtimeDir: anchors, aliases and merge keys are not supported; write the value out`},
		"a tag": {"stateDir: !!str /a\n", `
c.yaml:3:11: error: stateDir: tags are not supported; remove the tag`},
		"a relative path": {"stateDir: data\n", `
c.yaml:3:11: error: stateDir: "data" is not an absolute path`},
		"a path with detours": {"stateDir: /a/../b/\n", `
c.yaml:3:11: error: stateDir: "/a/../b/" is not in its shortest form; write /b`},
		"a socket path that is too long": {"iri: {address: /" + strings.Repeat("a", 107) + "}\n", `
c.yaml:3:16: error: iri.address: the path has 108 bytes, but a Unix socket's may have 107; use a shorter path`},
		"a runtime directory that leaves no room": {"runtimeDir: /" + strings.Repeat("a", 51) + "\n", `
c.yaml:3:13: error: runtimeDir: the path has 52 bytes, but the sockets below it leave it only 51; use a shorter path`},
		"state inside the runtime directory": {"stateDir: /run/x/state\nruntimeDir: /run/x\n", `
c.yaml:3:11: warning: stateDir: /run is emptied at reboot, and the machines with it; use a directory on disk
c.yaml:4:13: error: runtimeDir: contains stateDir, which must survive when the runtime directory is emptied`},
		"a group that is none": {"iri: {group: a b}\n", `
c.yaml:3:14: error: iri.group: "a b" is neither a group name nor a group number`},
		"metrics on every interface by omission": {"servers: {metricsAddress: \":8080\"}\n", `
c.yaml:3:27: error: servers.metricsAddress: ":8080" names no host; write 127.0.0.1:8080, or 0.0.0.0:8080 or [::]:8080 to serve every interface`},
		"health without port": {"servers: {healthAddress: \":\"}\n", `
c.yaml:3:26: error: servers.healthAddress: ":" has no port between 0 and 65535`},
		"health and metrics at one address": {"servers: {healthAddress: \"127.0.0.1:1\", metricsAddress: \"127.0.0.1:1\"}\n", `
c.yaml:3:57: error: servers.metricsAddress: is servers.healthAddress too: health is for everybody to ask, metrics and status are not; use another port`},
		"metrics without port": {"servers: {metricsAddress: localhost}\n", `
c.yaml:3:27: error: servers.metricsAddress: "localhost" is not of the form host:port`},
		"consoles on every interface by omission": {"streaming: {address: \":20251\"}\n", `
c.yaml:3:22: error: streaming.address: ":20251" names no host; write 127.0.0.1:20251, or 0.0.0.0:20251 or [::]:20251 to serve every interface`},
		"a base URL without a scheme": {"streaming: {baseURL: node.example}\n", `
c.yaml:3:22: error: streaming.baseURL: "node.example" is not an http or https URL; write http://node.example`},
		"a base URL with a query": {"streaming: {baseURL: \"http://node.example?a=b\"}\n", `
c.yaml:3:22: error: streaming.baseURL: "http://node.example?a=b" has more than scheme, host and path`},
		"a certificate without its key": {"streaming: {tlsCertFile: /cert.pem}\n", `
c.yaml:3:26: error: streaming.tlsCertFile: needs streaming.tlsKeyFile: certificate and key belong together`},
		"events gone before they are fetched": {"events: {ttl: 1m}\n", `
c.yaml:3:15: error: events.ttl: 1m is too short: the machine pool controller fetches events once a minute, and some would be gone by then; use 2m or more`},
		"events swept too rarely": {"events: {ttl: 2m, sweepInterval: 3m}\n", `
c.yaml:3:34: warning: events.sweepInterval: 3m is longer than events.ttl, so events are kept for up to twice their time; use at most events.ttl`},
		"a backoff without end": {"reconcile: {maxBackoff: 5m}\n", `
c.yaml:3:25: error: reconcile.maxBackoff: 5m is above the greatest value of 30s`},
		"overcommit below one": {"capacity: {cpuOvercommit: 0.5}\n", `
c.yaml:3:27: error: capacity.cpuOvercommit: 0.5 is below the least value of 1.0`},
		"overcommit that is no number": {"capacity: {cpuOvercommit: .nan}\n", `
c.yaml:3:27: error: capacity.cpuOvercommit: ".nan" is not a number`},
		"fw_cfg without QEMU": {"hypervisor: {driver: cloud-hypervisor, ignition: fw_cfg}\n", `
c.yaml:3:50: error: hypervisor.ignition: fw_cfg needs hypervisor.driver qemu; use auto, disk or smbios`},
		"smbios with QEMU": {"hypervisor: {driver: qemu, ignition: smbios}\n", `
c.yaml:3:38: error: hypervisor.ignition: smbios needs hypervisor.driver cloud-hypervisor; use auto, fw_cfg or disk`},
		"smbios when the driver is open": {"hypervisor: {ignition: smbios}\n", `
c.yaml:3:24: warning: hypervisor.ignition: smbios works only if cloud-hypervisor is chosen at start; set hypervisor.driver to cloud-hypervisor`},
		"macOS' accelerator on Linux": {"hypervisor: {qemu: {accelerator: hvf}}\n", `
c.yaml:3:34: error: hypervisor.qemu.accelerator: hvf needs macOS, this is linux; use auto`},
		"the user network without QEMU": {"hypervisor: {driver: cloud-hypervisor}\nnetwork: {plugin: user}\n", `
c.yaml:4:19: error: network.plugin: the user network needs hypervisor.driver qemu; use isolated`},
		"apinet without the node's name": {"network: {plugin: apinet}\n", `
c.yaml:3:19: error: network.plugin: apinet needs the name of this host in ironcore-net; set network.apinet.nodeName`},
		"apinet with two places for the kubeconfig": {"network: {plugin: apinet, apinet: {nodeName: a, kubeconfig: /k, kubeconfigSecretName: s}}\n", `
c.yaml:3:87: error: network.apinet.kubeconfigSecretName: contradicts network.apinet.kubeconfig: a kubeconfig is kept in one place; keep one of the two`},
		"apinet with rotation and no place for it": {"network: {plugin: apinet, apinet: {nodeName: a, rotateCertificates: true}}\n", `
c.yaml:3:69: error: network.apinet.rotateCertificates: the client certificate has no place to be kept; set network.apinet.kubeconfig or network.apinet.kubeconfigSecretName`},
		"a string for true": {"network: {apinet: {rotateCertificates: \"true\"}}\n", `
c.yaml:3:40: error: network.apinet.rotateCertificates: want true or false, found the string "true"; remove the quotes`},
		"the user network when the driver is open": {"network: {plugin: user}\n", `
c.yaml:3:19: warning: network.plugin: the user network works only if qemu is chosen at start; set hypervisor.driver to qemu`},
		"forwards without the user network": {"network: {user: {forwards: [\"127.0.0.1:1-:1\"]}}\n", `
c.yaml:3:28: error: network.user.forwards: contradicts network.plugin isolated, which forwards no port; set network.plugin to user`},
		"bad forwards": {"hypervisor: {driver: qemu}\nnetwork:\n  plugin: user\n  user:\n    forwards:\n" +
			"    - tcp:127.0.0.1:1-:1\n    - udp:127.0.0.1:1-:1\n    - :2222-:22\n    - 127.0.0.1:0-:22\n    - 2222:22\n    - 127.0.0.1:1-[::1]:2\n", `
c.yaml:8:7: error: network.user.forwards[0]: "tcp:127.0.0.1:1-:1" names a protocol, but it is always TCP; write 127.0.0.1:1-:1
c.yaml:9:7: error: network.user.forwards[1]: "udp:127.0.0.1:1-:1" forwards UDP, but only TCP is supported
c.yaml:10:7: error: network.user.forwards[2]: ":2222-:22" names no host address; write 127.0.0.1:2222-:22, or 0.0.0.0:2222-:22 to serve every interface
c.yaml:11:7: error: network.user.forwards[3]: "127.0.0.1:0-:22": the host's side "127.0.0.1:0" has no port between 1 and 65535; write 127.0.0.1:2222-:22
c.yaml:12:7: error: network.user.forwards[4]: "2222:22" is not of the form host:port-guest:port; write 127.0.0.1:2222-:22
c.yaml:13:7: error: network.user.forwards[5]: "127.0.0.1:1-[::1]:2": the guest's side "[::1]:2" has no IPv4 address; write 127.0.0.1:2222-:22`},
		"two sources of classes": {"machineClasses:\n  file: /classes.yaml\n  inline:\n  - metadata: {name: a}\n    capabilities: {cpu: 1, memory: 1Gi}\n", `
c.yaml:6:3: error: machineClasses.inline: contradicts machineClasses.file: classes come from one place; keep one of the two`},
		"a bad class": {"machineClasses:\n  inline:\n  - metadata: {name: a}\n    capabilities: {cpu: 0, memory: 1Gi}\n", `
c.yaml:6:25: error: machineClasses.inline[0].capabilities.cpu: 0 is not above zero`},
		"everything at once": {"stateDir: x\nlogg: {}\nreconcile:\n  workers: []\n  maxBackoff: 1h\n", `
c.yaml:3:11: error: stateDir: "x" is not an absolute path
c.yaml:4:1: error: logg: unknown key; did you mean log?
c.yaml:6:12: error: reconcile.workers: want an integer, found a list
c.yaml:7:15: error: reconcile.maxBackoff: 1h is above the greatest value of 30s`},
	} {
		t.Run(name, func(t *testing.T) {
			_, report := load(t, amd64(), header+c.body)
			if d := cmp.Diff(strings.TrimPrefix(c.want, "\n")+"\n", printed(t, report)); d != "" {
				t.Error(d)
			}
			if strings.Contains(c.want, ": error: ") != (report.Err() != nil) {
				t.Errorf("Err is %v", report.Err())
			}
		})
	}
}

func TestTheHeaderIsNeededAndExact(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"empty":           {" ", "c.yaml: error: the document is empty\n"},
		"only comments":   {"# nothing\n", "c.yaml: error: the document is empty\n"},
		"a list":          {"- a\n", "c.yaml:1:1: error: want a mapping with apiVersion and kind, found a list\n"},
		"another version": {strings.Replace(header, "v1alpha1", "v2", 1), "c.yaml:1:13: error: apiVersion: found the string \"config.cloud-hypervisor-provider.ironcore.dev/v2\"; write apiVersion: config.cloud-hypervisor-provider.ironcore.dev/v1alpha1\n"},
		"no header": {"stateDir: /a\n", "c.yaml:1:1: error: apiVersion: the key is missing; write apiVersion: config.cloud-hypervisor-provider.ironcore.dev/v1alpha1\n" +
			"c.yaml:1:1: error: kind: the key is missing; write kind: ProviderConfig\n"},
		"text that is not UTF-8": {"a: b\nc: \xff\n", "c.yaml:2:4: error: the text is not UTF-8\n"},
		"a control character":    {"a: \x00\n", "c.yaml:1:4: error: the text holds a control character\n"},
		"a key that is no string": {
			header + "1: a\n",
			"c.yaml:3:1: error: a key must be a string, not the integer 1; put it in quotes\n",
		},
		"a document without end": {header + strings.Repeat("#", 1<<20), "c.yaml: error: the document has 1048664 bytes, more than the limit of 1048576\n"},
	} {
		t.Run(name, func(t *testing.T) {
			_, report := load(t, amd64(), c.data)
			if d := cmp.Diff(c.want, printed(t, report)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestAMissingDocumentIsAnError(t *testing.T) {
	_, report := amd64().Load(reading(""), "other.yaml")
	if got, want := printed(t, report), "other.yaml: error: cannot read the document: file does not exist\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestThePlatformDecidesWhatIsPossible(t *testing.T) {
	for name, c := range map[string]struct {
		goos, goarch, arg, want string
	}{
		"Cloud Hypervisor on macOS": {"darwin", "arm64", "--hypervisor=cloud-hypervisor", "--hypervisor: error: hypervisor.driver: Cloud Hypervisor needs Linux, this is darwin; use qemu\n"},
		"systemd on macOS":          {"darwin", "arm64", "--hypervisor-supervisor=systemd", "--hypervisor-supervisor: error: hypervisor.supervisor: systemd needs Linux, this is darwin; use child\n"},
		"kvm on macOS":              {"darwin", "arm64", "--qemu-accelerator=kvm", "--qemu-accelerator: error: hypervisor.qemu.accelerator: kvm needs Linux, this is darwin; use auto\n"},
		"hvf on macOS":              {"darwin", "arm64", "--qemu-accelerator=hvf", ""},
		"smbios on arm64":           {"linux", "arm64", "--hypervisor-ignition=smbios", "--hypervisor-ignition: error: hypervisor.ignition: smbios needs amd64, this is arm64; use auto or disk\n"},
	} {
		t.Run(name, func(t *testing.T) {
			_, report := load(t, &config.Loader{GOOS: c.goos, GOARCH: c.goarch}, "", c.arg)
			if d := cmp.Diff(c.want, printed(t, report)); d != "" {
				t.Error(d)
			}
		})
	}
}
