// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
)

const header = "apiVersion: config.cloud-hypervisor-provider.ironcore.dev/v1alpha1\nkind: ProviderConfig\n"

// amd64 is a fixed platform, so that tests mean the same on every machine.
func amd64() *config.Loader {
	return &config.Loader{GOOS: "linux", GOARCH: "amd64", WorkDir: "/home/me"}
}

func reading(data string) config.ReadFile {
	return func(path string) ([]byte, error) {
		if path != "c.yaml" {
			return nil, &os.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		return []byte(data), nil
	}
}

func load(t *testing.T, l *config.Loader, data string, args ...string) (*config.Config, *config.Report) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	l.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	path := "c.yaml"
	if data == "" {
		path = ""
	}
	return l.Load(reading(data), path)
}

func printed(t *testing.T, r *config.Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var comparing = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func TestWithoutDocumentAndFlagsTheDefaultsHold(t *testing.T) {
	got, report := load(t, amd64(), "")
	if len(report.Problems) > 0 {
		t.Fatalf("problems: %v", report.Problems)
	}
	if d := cmp.Diff(config.Default(), *got, comparing); d != "" {
		t.Error(d)
	}
}

func TestADocumentSetsWhatItNamesAndNothingElse(t *testing.T) {
	got, report := load(t, amd64(), header+`
stateDir: /data/chp
iri:
  group: 1000
  requestTimeout: 1m30s
hypervisor:
  driver: qemu
  qemu: {accelerator: tcg, hotplugPorts: 4}
machineClasses:
  inline:
  - metadata: {name: small}
    capabilities: {cpu: 2, memory: 4Gi}
capacity:
  reservedMemory: 1G
  memoryOverheadPerMachine: 1024
  cpuOvercommit: 2
network:
  plugin: user
  user:
    forwards: ["127.0.0.1:2222-:22", "127.0.0.1:80-10.0.2.15:8080"]
images:
  plainHTTP: ["localhost:5000", "[::1]:5000"]
reconcile:
  # all keys commented out below
events:
log: {format: json}
`)
	if len(report.Problems) > 0 {
		t.Fatalf("problems: %v", report.Problems)
	}
	want := config.Default()
	want.StateDir = "/data/chp"
	want.IRI.Group = "1000"
	want.IRI.RequestTimeout = 90 * time.Second
	want.Hypervisor.Driver = config.DriverQEMU
	want.Hypervisor.QEMU.Accelerator = config.AcceleratorTCG
	want.Hypervisor.QEMU.HotplugPorts = 4
	want.MachineClasses.Inline = []class.Class{{Name: "small", Resources: map[string]int64{"cpu": 2, "memory": 4 << 30}}}
	want.Capacity.ReservedMemory = 1e9
	want.Capacity.MemoryOverheadPerMachine = 1024
	want.Capacity.CPUOvercommit = 2
	want.Network.Plugin = config.NetworkUser
	loop := netip.MustParseAddr("127.0.0.1")
	want.Network.User.Forwards = []config.Forward{
		{HostAddress: loop, HostPort: 2222, GuestPort: 22},
		{HostAddress: loop, HostPort: 80, GuestAddress: netip.MustParseAddr("10.0.2.15"), GuestPort: 8080},
	}
	want.Images.PlainHTTP = []string{"localhost:5000", "[::1]:5000"}
	want.Log.Format = config.LogJSON
	if d := cmp.Diff(want, *got, comparing); d != "" {
		t.Error(d)
	}
}

func TestNetworksAreReadFromTheDocumentAndFromFlagsAlike(t *testing.T) {
	want := []config.ProviderNetwork{
		{Name: "internet", Bridge: "br0", MTU: 9000, Isolated: true},
		{Name: "lab", Bridge: "lab0", Managed: &config.ManagedNetwork{
			Subnet: netip.MustParsePrefix("10.1.2.0/24"), Gateway: netip.MustParseAddr("10.1.2.254"), DHCP: true,
			DNS: []netip.Addr{netip.MustParseAddr("9.9.9.9"), netip.MustParseAddr("1.1.1.1")},
		}},
		{Name: "small", Managed: &config.ManagedNetwork{Subnet: netip.MustParsePrefix("10.1.3.0/30"), NAT: true, DHCP: true}},
	}
	got, report := load(t, amd64(), header+`
network:
  plugin: providernet
  providernet:
    networks:
      small: {managed: {subnet: 10.1.3.0/30}}
      internet: {bridge: br0, mtu: 9000, isolated: true}
      lab:
        bridge: lab0
        managed: {subnet: 10.1.2.0/24, gateway: 10.1.2.254, nat: false, dns: [9.9.9.9, 1.1.1.1], dhcp: true}
`)
	flags, more := load(t, amd64(), "", "--network-interface-plugin-name=providernet",
		"--network-providernet-network=small,subnet=10.1.3.0/30",
		"--network-providernet-network=lab,bridge=lab0,subnet=10.1.2.0/24,gateway=10.1.2.254,nat=false,dns=9.9.9.9,dns=1.1.1.1",
		"--network-providernet-network=internet,bridge=br0,mtu=9000,isolated=true")
	if len(report.Problems)+len(more.Problems) > 0 {
		t.Fatal(report.Problems, more.Problems)
	}
	for from, c := range map[string]*config.Config{"document": got, "flags": flags} {
		if d := cmp.Diff(want, c.Network.ProviderNet.Networks, comparing); d != "" {
			t.Errorf("%s: %s", from, d)
		}
	}
}

func TestAFlagOverridesTheDocument(t *testing.T) {
	l := amd64()
	got, report := load(t, l, header+"reconcile: {workers: 3}\nevents: {max: 7}\n", "--reconcile-workers=4", "--log-level=debug")
	if report.Err() != nil {
		t.Fatal(report.Err())
	}
	if got.Reconcile.Workers != 4 || got.Events.Max != 7 || got.Log.Level != "debug" {
		t.Errorf("got %+v %+v %+v", got.Reconcile, got.Events, got.Log)
	}
	want := map[string]string{"reconcile.workers": "--reconcile-workers", "events.max": "c.yaml:4:15", "log.level": "--log-level"}
	for path, source := range want {
		if got := l.Sources()[path].String(); got != source {
			t.Errorf("%s comes from %q, want %q", path, got, source)
		}
	}
	if len(l.Sources()) != len(want) {
		t.Errorf("sources: %v", l.Sources())
	}
}

func TestFlagsOfOtherProvidersAreAccepted(t *testing.T) {
	for arg, check := range map[string]func(*config.Config) bool{
		"--address=/run/a.sock":                        func(c *config.Config) bool { return c.IRI.Address == "/run/a.sock" },
		"--provider-root-dir=/var/lib/chp":             func(c *config.Config) bool { return c.StateDir == "/var/lib/chp" },
		"--supported-machine-classes=classes.json":     func(c *config.Config) bool { return c.MachineClasses.File == "/home/me/classes.json" },
		"--cloud-hypervisor-firmware-path=/fw":         func(c *config.Config) bool { return c.Hypervisor.CloudHypervisor.Firmware == "/fw" },
		"--network-interface-plugin-name=isolated":     func(c *config.Config) bool { return c.Network.Plugin == "isolated" },
		"--event-list-watch-source-resync-duration=5s": func(c *config.Config) bool { return c.Reconcile.ResyncInterval == 5*time.Second },
		"--machine-event-max-events=100":               func(c *config.Config) bool { return c.Events.Max == 100 },
		"--machine-event-ttl=10m":                      func(c *config.Config) bool { return c.Events.TTL == 10*time.Minute },
		"--machine-event-resync-interval=30s":          func(c *config.Config) bool { return c.Events.SweepInterval == 30*time.Second },
		"--servers-health-check-address=:9091":         func(c *config.Config) bool { return c.Servers.HealthAddress == ":9091" },
		"--servers-health-check-address=":              func(c *config.Config) bool { return c.Servers.HealthAddress == "" },
		"--streaming-address=127.0.0.1:1":              func(c *config.Config) bool { return c.Streaming.Address == "127.0.0.1:1" },
		"--streaming-address=":                         func(c *config.Config) bool { return c.Streaming.Address == "" },
		"--base-url=https://node.example/chp/":         func(c *config.Config) bool { return c.Streaming.BaseURL == "https://node.example/chp/" },
		"--servers-metrics-address=127.0.0.1:9090":     func(c *config.Config) bool { return c.Servers.MetricsAddress == "127.0.0.1:9090" },
		"--zap-log-level=error":                        func(c *config.Config) bool { return c.Log.Level == "error" },
		"--zap-encoder=console":                        func(c *config.Config) bool { return c.Log.Format == "text" },
		"--zap-encoder=json":                           func(c *config.Config) bool { return c.Log.Format == "json" },
	} {
		t.Run(arg, func(t *testing.T) {
			got, report := load(t, amd64(), "", arg)
			if report.Err() != nil {
				t.Fatal(report.Err())
			}
			if !check(got) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestListFlagsTakeCommasAndRepetition(t *testing.T) {
	got, report := load(t, amd64(), header+"images: {plainHTTP: [old]}\n",
		"--images-plain-http=a,b:5000", "--images-plain-http=c",
		"--machine-class=small,cpu=1,memory=1Gi", "--machine-class=big,cpu=8,memory=32Gi",
		"--network-interface-plugin-name=user", "--hypervisor=qemu", "--network-user-forwards=127.0.0.1:1-:1,127.0.0.1:2-:2")
	if report.Err() != nil {
		t.Fatal(report.Err())
	}
	if d := cmp.Diff([]string{"a", "b:5000", "c"}, got.Images.PlainHTTP); d != "" {
		t.Error(d)
	}
	if len(got.MachineClasses.Inline) != 2 || len(got.Network.User.Forwards) != 2 {
		t.Errorf("got %v %v", got.MachineClasses.Inline, got.Network.User.Forwards)
	}
	got, report = load(t, amd64(), header+"images: {plainHTTP: [old]}\n", "--images-plain-http=")
	if report.Err() != nil || len(got.Images.PlainHTTP) != 0 {
		t.Errorf("an empty flag leaves %v, %v", got.Images.PlainHTTP, report.Err())
	}
}

func TestBadFlagsAreReportedTogetherByName(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"values that do not parse": {
			[]string{"--reconcile-workers=many", "--machine-event-ttl=300", "--log-level=inof"},
			"--log-level: error: log.level: \"inof\" is none of debug, info, warn, error; did you mean info?\n" +
				"--machine-event-ttl: error: events.ttl: \"300\" is not a duration such as 30s or 5m; write 300s if seconds are meant\n" +
				"--reconcile-workers: error: reconcile.workers: \"many\" is not a decimal integer\n",
		},
		"a level that only zap has": {
			[]string{"--zap-log-level=panic"},
			"--zap-log-level: error: log.level: \"panic\" is none of debug, error, info; use --log-level=debug|info|warn|error\n",
		},
		"an alias that says something else": {
			[]string{"--state-dir=/a", "--provider-root-dir=/b"},
			"--provider-root-dir: error: stateDir: contradicts --state-dir, which sets the same\n",
		},
		"an alias that says the same": {[]string{"--state-dir=/a", "--provider-root-dir=/a"}, ""},
		"a class without memory": {
			[]string{"--machine-class=small,cpu=1"},
			"--machine-class: error: machineClasses.inline: class \"small\" has no memory\n",
		},
		"a class given twice": {
			[]string{"--machine-class=a,cpu=1,memory=1", "--machine-class=a,cpu=2,memory=1"},
			"--machine-class: error: machineClasses.inline: class \"a\" is given twice\n",
		},
		"two sources of classes": {
			[]string{"--machine-class=a,cpu=1,memory=1", "--supported-machine-classes=/c.yaml"},
			"--machine-class: error: machineClasses.inline: contradicts machineClasses.file: classes come from one place; keep one of the two\n",
		},
		"an address as URL": {
			[]string{"--address=unix:///run/a.sock"},
			"--address: error: iri.address: \"unix:///run/a.sock\" is a URL, want a path; write /run/a.sock\n",
		},
		"an empty needed value": {
			[]string{"--state-dir="},
			"--state-dir: error: stateDir: the value is empty; remove the key to get the default\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, report := load(t, amd64(), "", c.args...)
			if d := cmp.Diff(c.want, printed(t, report)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestLoadingAgainSeesTheChangedDocument(t *testing.T) {
	l := amd64()
	load(t, l, header+"events: {max: 7}\n", "--reconcile-workers=4")
	got, report := l.Load(reading(header+"events: {ttl: 9m}\n"), "c.yaml")
	if report.Err() != nil {
		t.Fatal(report.Err())
	}
	if got.Events.Max != 1000 || got.Events.TTL != 9*time.Minute || got.Reconcile.Workers != 4 {
		t.Errorf("got %+v", got)
	}
}

func TestClassesComeFromOnePlace(t *testing.T) {
	files := func(data string) config.ReadFile {
		return func(string) ([]byte, error) { return []byte(data), nil }
	}
	one := "- metadata: {name: small}\n  capabilities: {cpu: 1, memory: 1Gi}\n"
	c := config.Default()
	if set, report := c.LoadClasses(nil); set != nil || report.Err() == nil {
		t.Errorf("no source gives %v, %v", set, report.Err())
	}
	c.MachineClasses.File = "/classes.yaml"
	if set, report := c.LoadClasses(files(one)); report.Err() != nil || set.Len() != 1 {
		t.Errorf("a file gives %v, %v", set, report.Err())
	}
	for name, read := range map[string]config.ReadFile{
		"/classes.yaml: error: cannot read the machine classes: file does not exist":                                   reading(""),
		"/classes.yaml: error: machineClasses: the file holds no machine class":                                        files("[]"),
		"/classes.yaml:1:1: error: want a list of MachineClass objects, found a mapping; start each class with \"- \"": files("a: b"),
	} {
		if _, report := c.LoadClasses(read); report.Err() == nil || report.Err().Error() != name {
			t.Errorf("got %v, want %s", report.Err(), name)
		}
	}
	c.MachineClasses = config.MachineClasses{Inline: []class.Class{{Name: "a", Resources: map[string]int64{"cpu": 1, "memory": 1}}}}
	if set, report := c.LoadClasses(nil); report.Err() != nil || set.Len() != 1 {
		t.Errorf("inline gives %v, %v", set, report.Err())
	}
}
