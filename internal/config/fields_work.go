// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

func imageFields() []Field {
	return []Field{
		{
			Path: "images.plainHTTP", Type: TypeList, Limits: "each host or host:port", Empty: "no registry",
			Doc:   "Registries that are spoken to without TLS. Every other one needs a valid certificate.",
			codec: stringList(func(c *Config) *[]string { return &c.Images.PlainHTTP }, needed(registry)),
		},
		{
			Path: "images.dockerConfig", Type: TypePath, Empty: "images are pulled without credentials",
			Doc:   "Docker configuration file with the registries' credentials.",
			codec: text(func(c *Config) *string { return &c.Images.DockerConfig }, absolute),
		},
		{
			Path: "images.maxConcurrentPulls", Type: TypeInt, Limits: "1 to 64",
			Doc:   "Images pulled at the same time; more wait.",
			codec: integer(func(c *Config) *int { return &c.Images.MaxConcurrentPulls }, 1, 64),
		},
		{
			Path: "images.budget", Type: TypeAmount, Limits: "1Mi or more, or 1% to 100% of the file system", Empty: "bounded by the reserve alone",
			Doc:   "What the image cache may take of the disk. Images that no machine references make room; a pull that does not fit then fails.",
			codec: optional(func(c *Config) *document.Amount { return &c.Images.Budget }, 1<<20, 100),
		},
		{
			Path: "images.reserve", Type: TypeAmount, Limits: "64Mi or more, or 1% to 90% of the file system",
			Doc:   "What images leave free on the file system of the state directory. With less free, images that no machine references go, and nothing is pulled.",
			codec: amount(func(c *Config) *document.Amount { return &c.Images.Reserve }, 64<<20, 90),
		},
	}
}

func workFields() []Field {
	guestOffs := []string{GuestOffRestart, GuestOffKeep}
	return []Field{
		{
			Path: "reconcile.workers", Type: TypeInt, Limits: "1 to 1024",
			Doc:   "Machines worked on at the same time.",
			codec: integer(func(c *Config) *int { return &c.Reconcile.Workers }, 1, 1024),
		},
		{
			Path: "reconcile.resyncInterval", Flag: "event-list-watch-source-resync-duration", Type: TypeDuration, Limits: "1s to 1h",
			Doc:   "Every machine is looked at again after this time, even if nothing was heard of it.",
			codec: duration(func(c *Config) *time.Duration { return &c.Reconcile.ResyncInterval }, time.Second, time.Hour),
		},
		{
			Path: "reconcile.maxBackoff", Type: TypeDuration, Limits: "100ms to 30s",
			Doc:   "Longest wait before a failed step is tried again.",
			codec: duration(func(c *Config) *time.Duration { return &c.Reconcile.MaxBackoff }, 100*time.Millisecond, 30*time.Second),
		},
		{
			Path: "shutdown.deleteTimeout", Flag: "gc-vm-graceful-shutdown-timeout", Type: TypeDuration, Limits: "0s to 24h; 0s cuts the power at once",
			Doc:   "How long the guest of a deleted machine may take to shut down before its power is cut.",
			codec: duration(func(c *Config) *time.Duration { return &c.Shutdown.DeleteTimeout }, 0, 24*time.Hour),
		},
		{
			Path: "shutdown.powerOffTimeout", Type: TypeDuration, Limits: "0s to 24h; 0s cuts the power at once",
			Doc:   "The same for a machine that is powered off.",
			codec: duration(func(c *Config) *time.Duration { return &c.Shutdown.PowerOffTimeout }, 0, 24*time.Hour),
		},
		{
			Path: "shutdown.signalInterval", Flag: "gc-resync-interval", Type: TypeDuration, Limits: "1s to 10m",
			Doc:   "The power button is pressed again after this time: a guest that still boots misses the first press.",
			codec: duration(func(c *Config) *time.Duration { return &c.Shutdown.SignalInterval }, time.Second, 10*time.Minute),
		},
		{
			Path: "shutdown.onGuestPowerOff", Type: TypeString, Allowed: guestOffs,
			Doc:   "What follows when a guest powers itself off: `restart` starts it again, as libvirt-provider does; `keep` leaves it suspended until it is turned on.",
			codec: choice(func(c *Config) *string { return &c.Shutdown.OnGuestPowerOff }, guestOffs),
		},
		{
			Path: "events.max", Flag: "machine-event-max-events", Type: TypeInt, Limits: "1 to 100000",
			Doc:   "Machine events kept; the oldest make room.",
			codec: integer(func(c *Config) *int { return &c.Events.Max }, 1, 100000),
		},
		{
			Path: "events.ttl", Flag: "machine-event-ttl", Type: TypeDuration, Limits: "more than 1m, at most 24h",
			Doc:   "Time after which a machine event is dropped. The machine pool controller fetches them once a minute.",
			codec: duration(func(c *Config) *time.Duration { return &c.Events.TTL }, time.Second, 24*time.Hour),
		},
		{
			Path: "events.sweepInterval", Flag: "machine-event-resync-interval", Type: TypeDuration, Limits: "1s to 1h",
			Doc:   "How often events past their time are looked for.",
			codec: duration(func(c *Config) *time.Duration { return &c.Events.SweepInterval }, time.Second, time.Hour),
		},
	}
}

func surfaceFields() []Field {
	agents := []string{GuestAgentNone, GuestAgentQEMU}
	levels := []string{"debug", "info", "warn", "error"}
	formats := []string{LogText, LogJSON}
	return []Field{
		{
			Path: "guestAgent.type", Type: TypeString, Allowed: agents,
			Doc:   "Agent that guests are expected to run. `Qemu` gives each machine a channel to it, asks it to shut the guest down before the power button is pressed, and shows what it tells; see guest-agent.md.",
			codec: choice(func(c *Config) *string { return &c.GuestAgent.Type }, agents),
		},
		{
			Path: "console.logMaxBytes", Type: TypeBytes, Limits: "64Ki to 1Gi",
			Doc:   "Size at which a machine's console log is rotated.",
			codec: bytesValue(func(c *Config) *int64 { return &c.Console.LogMaxBytes }, 64<<10, 1<<30),
		},
		{
			Path: "console.logBackups", Type: TypeInt, Limits: "0 to 16",
			Doc:   "Rotated console logs kept per machine beside the current one.",
			codec: integer(func(c *Config) *int { return &c.Console.LogBackups }, 0, 16),
		},
		{
			Path: "streaming.address", Flag: "streaming-address", Type: TypeAddress, Empty: "off",
			Limits: "IP address or localhost, and port; every interface only as 0.0.0.0 or [::]",
			Doc:    "Where remote clients reach the consoles of machines over SPDY and WebSocket.",
			codec:  text(func(c *Config) *string { return &c.Streaming.Address }, listenAddress),
		},
		{
			Path: "streaming.baseURL", Flag: "base-url", Type: TypeString, Limits: "http:// or https:// URL",
			Empty: "`http://` or `https://` and the address",
			Doc:   "What the console URLs given to the machine pool controller begin with.",
			codec: text(func(c *Config) *string { return &c.Streaming.BaseURL }, baseURL),
		},
		{
			Path: "streaming.tlsCertFile", Type: TypePath, Empty: "plain HTTP",
			Doc:   "PEM file with the certificate for the consoles; read again when it changes.",
			codec: text(func(c *Config) *string { return &c.Streaming.TLSCertFile }, absolute),
		},
		{
			Path: "streaming.tlsKeyFile", Type: TypePath, Empty: "plain HTTP",
			Doc:   "PEM file with the key of that certificate.",
			codec: text(func(c *Config) *string { return &c.Streaming.TLSKeyFile }, absolute),
		},
		{
			Path: "servers.healthAddress", Flag: "servers-health-check-address", Type: TypeAddress, Empty: "off",
			Limits: "port, with an IP address or localhost before it or, for every interface, nothing",
			Doc:    "Where `/healthz` and `/readyz` are served over HTTP, and nothing else.",
			codec:  text(func(c *Config) *string { return &c.Servers.HealthAddress }, openAddress),
		},
		{
			Path: "servers.metricsAddress", Type: TypeAddress, Empty: "off",
			Limits: "IP address or localhost, and port; every interface only as 0.0.0.0 or [::]",
			Doc:    "Where Prometheus metrics (`/metrics`) and the status page (`/statusz`) are served over HTTP.",
			codec:  text(func(c *Config) *string { return &c.Servers.MetricsAddress }, listenAddress),
		},
		{
			Path: "servers.perMachineMetrics", Type: TypeInt, Limits: "0 to 10000; 0 is none",
			Doc:   "Greatest number of machines with metrics of their own (CPU, memory, disks, network); the oldest come first.",
			codec: integer(func(c *Config) *int { return &c.Servers.PerMachineMetrics }, 0, 10000),
		},
		{
			Path: "log.level", Type: TypeString, Allowed: levels,
			Aliases: []Alias{{Name: "zap-log-level", Values: map[string]string{"debug": "debug", "info": "info", "error": "error"}}},
			Doc:     "Least severity that is logged.",
			codec:   choice(func(c *Config) *string { return &c.Log.Level }, levels),
		},
		{
			Path: "log.format", Type: TypeString, Allowed: formats,
			Aliases: []Alias{{Name: "zap-encoder", Values: map[string]string{"console": LogText, "json": LogJSON}}},
			Doc:     "Notation of the log on standard error.",
			codec:   choice(func(c *Config) *string { return &c.Log.Format }, formats),
		},
	}
}
