// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"text/tabwriter"
	"time"

	eventapi "github.com/ironcore-dev/ironcore/iri/apis/event/v1alpha1"
	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
)

// listInterval is how often a watch asks. Answers come from the daemon's memory.
const listInterval = time.Second

// listing is what the sub-commands that list something over the IRI socket share.
type listing struct {
	configured
	output string
	watch  bool
}

func (l *listing) addFlags(cmd *cobra.Command) {
	l.configured.addFlags(cmd)
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Hidden || f.Name != "config" && f.Name != "address" })
	cmd.Flags().StringVarP(&l.output, "output", "o", "table", "table or json")
	cmd.Flags().BoolVarP(&l.watch, "watch", "w", false, "go on and print what changes, until interrupted")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// client connects to the daemon. The caller closes the connection.
func (l *configured) client(errOut io.Writer) (iri.MachineRuntimeClient, *grpc.ClientConn, error) {
	cfg, err := l.load(errOut)
	if err != nil {
		return nil, nil, err
	}
	conn, err := grpc.NewClient("unix://"+cfg.IRI.Address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20)))
	if err != nil {
		return nil, nil, err
	}
	return iri.NewMachineRuntimeClient(conn), conn, nil
}

// run prints once what list returns, or again whenever it changed.
func (l *listing) run(cmd *cobra.Command, list func(context.Context, iri.MachineRuntimeClient) (string, error)) error {
	if l.output != "table" && l.output != "json" {
		return fmt.Errorf("--output %q is neither table nor json", l.output)
	}
	client, conn, err := l.client(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	before := "\x00"
	for {
		ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
		text, err := list(ctx, client)
		cancel()
		switch {
		case cmd.Context().Err() != nil:
			return nil
		case err != nil:
			return listWayOut(cmd.Context(), strings.TrimPrefix(conn.Target(), "unix://"), err)
		}
		if text != before {
			before = text
			fmt.Fprint(cmd.OutOrStdout(), text)
		}
		if !l.watch {
			return nil
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(listInterval):
		}
	}
}

// listWayOut says what to do about a daemon that cannot be asked at its socket, without gRPC's own words around it.
func listWayOut(ctx context.Context, address string, err error) error {
	answer, ok := status.FromError(err)
	if !ok {
		return err
	}
	if answer.Code() == codes.Unavailable {
		conn, dialErr := new(net.Dialer).DialContext(ctx, "unix", address)
		switch {
		case errors.Is(dialErr, fs.ErrPermission):
			return fmt.Errorf("ask the daemon: %w; root and the group of the IRI socket may ask", dialErr)
		case dialErr != nil:
			return fmt.Errorf("ask the daemon: %w; does it run, and is this its --config or --address?", dialErr)
		}
		_ = conn.Close()
	}
	return fmt.Errorf("ask the daemon: %s: %s", answer.Code(), answer.Message())
}

func newMachines() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:   "machines [MACHINE]",
		Short: "List the machines of this server",
		Example: `  cloud-hypervisor-provider machines
  cloud-hypervisor-provider machines --watch
  cloud-hypervisor-provider machines -o json 4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: l.completeMachines,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return l.run(cmd, func(ctx context.Context, client iri.MachineRuntimeClient) (string, error) {
			req := &iri.ListMachinesRequest{}
			if len(args) > 0 {
				req.Filter = &iri.MachineFilter{Id: args[0]}
			}
			answer, err := client.ListMachines(ctx, req)
			switch {
			case err != nil:
				return "", err
			case len(args) > 0 && len(answer.Machines) == 0:
				return "", fmt.Errorf("there is no machine %s", args[0])
			case l.output == "json":
				return asJSON(withoutSecrets(answer))
			}
			return machineTable(answer.Machines), nil
		})
	}
	l.addFlags(cmd)
	return cmd
}

// withoutSecrets takes out what a terminal should not show.
func withoutSecrets(answer *iri.ListMachinesResponse) *iri.ListMachinesResponse {
	for _, m := range answer.Machines {
		for _, v := range m.Spec.GetVolumes() {
			if c := v.Connection; c != nil {
				c.SecretData, c.EncryptionData = nil, nil
			}
		}
	}
	return answer
}

func machineTable(machines []*iri.Machine) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MACHINE\tNAME\tSTATE\tCLASS\tAGE\tNOTE\tGUEST")
	for _, m := range machines {
		note, guest := "", ""
		for _, c := range m.Status.GetMachineConditions() {
			if c.Type == reconcile.ConditionGuestAgent {
				guest = c.Message
				continue
			}
			if c.Status != "True" && note == "" {
				note = strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Metadata.Id, nameOf(m.Metadata.Labels), word(m.Status.State.String(), "MACHINE_"),
			m.Spec.Class, age(time.Unix(0, m.Metadata.CreatedAt)), note, guest)
	}
	_ = w.Flush()
	return b.String()
}

// nameOf is the machine's name in the cluster, as the poollet's labels say.
func nameOf(labels map[string]string) string {
	const prefix = "machinepoollet.ironcore.dev/machine-"
	namespace, name := labels[prefix+"namespace"], labels[prefix+"name"]
	if name == "" {
		return "-"
	}
	return strings.TrimPrefix(namespace+"/"+name, "/")
}

func word(s, prefix string) string {
	s = strings.ToLower(strings.TrimPrefix(s, prefix))
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// age is a duration of one unit, as kubectl shows it. Minutes and up, so that a watch does not print each second.
func age(t time.Time) string {
	switch d := time.Since(t); {
	case d < time.Minute:
		return "<1m"
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

func asJSON(m proto.Message) (string, error) {
	raw, err := protojson.MarshalOptions{Multiline: true, Indent: "  "}.Marshal(m)
	return string(raw) + "\n", err
}

// completeMachines offers the ids of the machines to the shell.
func (l *configured) completeMachines(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	client, conn, err := l.client(io.Discard)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	answer, err := client.ListMachines(ctx, &iri.ListMachinesRequest{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var ids []string
	for _, m := range answer.Machines {
		ids = append(ids, m.Metadata.Id+"\t"+nameOf(m.Metadata.Labels))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

func newEvents() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:   "events [MACHINE]",
		Short: "List what happened to the machines lately",
		Long:  "List what happened to the machines lately. Events are kept in memory for events.ttl (5 minutes).",
		Example: `  cloud-hypervisor-provider events --watch
  cloud-hypervisor-provider events 4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: l.completeMachines,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		shown := map[string]bool{} // of a watch: each event once
		return l.run(cmd, func(ctx context.Context, client iri.MachineRuntimeClient) (string, error) {
			req := &iri.ListEventsRequest{}
			if len(args) > 0 {
				req.Filter = &iri.EventFilter{Id: args[0]}
			}
			answer, err := client.ListEvents(ctx, req)
			if err != nil {
				return "", err
			}
			if l.output == "json" {
				return asJSON(answer)
			}
			return eventTable(answer.Events, shown), nil
		})
	}
	l.addFlags(cmd)
	return cmd
}

// eventTable prints the events that were not shown yet, the header before the first.
func eventTable(events []*eventapi.Event, shown map[string]bool) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 9, 0, 2, ' ', 0)
	if len(shown) == 0 {
		fmt.Fprintln(w, "TIME\tTYPE\tMACHINE\tREASON\tMESSAGE")
	}
	shown[""] = true
	for _, e := range events {
		line := fmt.Sprintf("%s\t%s\t%s\t%s\t%s\n", time.Unix(e.Spec.EventTime, 0).Format(time.TimeOnly), e.Spec.Type,
			e.Spec.InvolvedObjectMeta.GetId(), e.Spec.Reason, e.Spec.Message)
		if !shown[line] {
			shown[line] = true
			fmt.Fprint(w, line)
		}
	}
	_ = w.Flush()
	return b.String()
}
