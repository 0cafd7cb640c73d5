// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/guestagent"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// maxGuestInfo bounds in bytes what a guest may say of itself.
const maxGuestInfo = 512

// useGuestAgent lets the reconciler speak to the agents in the guests, if they are configured to have one.
func useGuestAgent(cfg *config.Config, o *reconcile.Options) {
	if cfg.GuestAgent.Type != config.GuestAgentQEMU {
		return
	}
	o.GuestShutdown = func(ctx context.Context, vm vmm.VM) error {
		agent, err := agentOf(vm)
		if err != nil {
			return err
		}
		return agent.Shutdown(ctx, guestagent.PowerDown)
	}
	o.GuestInfo = func(ctx context.Context, vm vmm.VM) (reconcile.GuestFacts, error) {
		agent, err := agentOf(vm)
		if err != nil {
			return reconcile.GuestFacts{}, err
		}
		return describeGuest(ctx, agent)
	}
}

func agentOf(vm vmm.VM) (*guestagent.Client, error) {
	dialer, ok := vm.(vmm.GuestAgentDialer)
	if !ok {
		return nil, machine.Errorf(machine.Unimplemented, "this hypervisor has no channel to a guest agent")
	}
	return guestagent.New(guestagent.Options{Dial: dialer.DialGuestAgent})
}

// describeGuest puts what the agent tells into one line.
func describeGuest(ctx context.Context, agent *guestagent.Client) (reconcile.GuestFacts, error) {
	system, err := agent.OSInfo(ctx)
	if err != nil {
		return reconcile.GuestFacts{}, err
	}
	parts := []string{system.PrettyName, system.KernelRelease}
	if name, err := agent.HostName(ctx); err == nil {
		parts = append(parts, name)
	}
	if interfaces, err := agent.Interfaces(ctx); err == nil {
		for _, i := range interfaces {
			for _, ip := range i.Addresses {
				if !ip.Addr().IsLoopback() && !ip.Addr().IsLinkLocalUnicast() {
					parts = append(parts, ip.Addr().String())
				}
			}
		}
	}
	var said []string
	for _, part := range parts {
		if part != "" {
			said = append(said, part)
		}
	}
	text := strings.ToValidUTF8(strings.Join(said, ", "), "?")
	if len(text) > maxGuestInfo {
		text = strings.ToValidUTF8(text[:maxGuestInfo], "") + "…"
	}
	return reconcile.GuestFacts{OS: strings.TrimSpace(system.ID + " " + system.VersionID), Text: text}, nil
}
