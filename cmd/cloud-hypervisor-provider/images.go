// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image/operator"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/iriserver"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
)

const (
	// imagesSocket is the name of the socket for questions about images, in the runtime directory.
	imagesSocket = "images.sock"
	// imagesDir is the name of the image cache in the state directory.
	imagesDir = "images"
)

// serveImages keeps the image cache within its limits and answers operators, until ctx ends.
func (p *parts) serveImages(ctx context.Context, cfg *config.Config) error {
	listener, err := iriserver.Listen(filepath.Join(cfg.RuntimeDir, imagesSocket), cfg.IRI.Group)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return operator.Serve(ctx, listener, p.images, p.log) })
	group.Go(func() error { return p.images.Run(ctx) })
	return group.Wait()
}

// machines is what is asked of the store.
type machines interface {
	List() []*machine.Machine
	Quarantined() []store.Quarantined
}

// references tells the image cache which images machines need. A machine that cannot be read may need any. Disks that are
// overlays are not among the reasons: each has a name of its own for the bytes it is based on (package localdisk), so that
// the cache may drop its own.
func references(st machines) func(context.Context) ([]image.Use, error) {
	return func(context.Context) ([]image.Use, error) {
		if damaged := st.Quarantined(); len(damaged) > 0 {
			return nil, fmt.Errorf("machine %s is set aside as damaged: which image it needs is not known", damaged[0].Key)
		}
		var uses []image.Use
		for _, m := range st.List() {
			pin := m.Record.Image
			if pin != nil {
				uses = append(uses, image.Use{User: m.ID, Ref: pin.Ref, Digest: digest.Digest(pin.Digest)})
			}
			for _, v := range m.Desired.Volumes {
				if v.LocalDisk == nil || v.LocalDisk.Image == nil || *v.LocalDisk.Image == "" {
					continue
				}
				if ref := *v.LocalDisk.Image; pin == nil || pin.Ref != ref { // a pinned one is never looked up by its tag
					uses = append(uses, image.Use{User: m.ID, Ref: ref})
				}
			}
		}
		return uses, nil
	}
}

// imaging is what the sub-commands about images share.
type imaging struct {
	configured
	output string
}

func (i *imaging) addFlags(cmd *cobra.Command) {
	i.configured.addFlags(cmd)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Hidden || f.Name != "config" && f.Name != "runtime-dir" && f.Name != "state-dir"
	})
	cmd.Flags().StringVarP(&i.output, "output", "o", "table", "table or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// daemon returns a client and the configuration that says where the daemon is.
func (i *imaging) daemon(errOut io.Writer) (*operator.Client, *config.Config, error) {
	if i.output != "table" && i.output != "json" {
		return nil, nil, fmt.Errorf("--output %q is neither table nor json", i.output)
	}
	cfg, err := i.load(errOut)
	if err != nil {
		return nil, nil, err
	}
	return operator.NewClient(filepath.Join(cfg.RuntimeDir, imagesSocket)), cfg, nil
}

// isAway reports whether err means that no daemon listens.
func isAway(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// unwrapURL takes off what net/http says of a request that went over a socket of this host: a URL that nobody can open.
func unwrapURL(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}

// imagesWayOut says what to do about a daemon that cannot be asked.
func imagesWayOut(err error) error {
	var answered *operator.Error
	switch {
	case errors.As(err, &answered):
		return err
	case isAway(err):
		return fmt.Errorf("the daemon does not run, or this is not its --config or --runtime-dir; it alone knows which images are in use: %w", unwrapURL(err))
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; root and the group of the IRI socket may ask", err)
	}
	return fmt.Errorf("ask the daemon: %w", err)
}

func newImages() *cobra.Command {
	var i imaging
	cmd := &cobra.Command{
		Use:   "images",
		Short: "List the images in the cache, remove those nobody needs, verify their bytes",
		Long: `List the images in the cache: what they take of the disk, how many machines need them, and when
they were used last. Without a running daemon what lies on disk is listed.`,
		Example: `  cloud-hypervisor-provider images
  cloud-hypervisor-provider images prune --dry-run
  cloud-hypervisor-provider images verify registry.example/os/debian:13`,
		Args: known,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, cfg, err := i.daemon(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		l, err := client.List(cmd.Context())
		if isAway(err) {
			offline, diskErr := image.ListDir(cmd.Context(), filepath.Join(cfg.StateDir, imagesDir))
			if diskErr != nil {
				return fmt.Errorf("the daemon does not run, or this is not its --config or --runtime-dir: %w; and without it: %w",
					unwrapURL(err), diskErr)
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "the daemon does not run: this is what lies on disk")
			l, err = offline, nil
		}
		if err != nil {
			return imagesWayOut(err)
		}
		if i.output == "json" {
			return printJSON(cmd.OutOrStdout(), l)
		}
		fmt.Fprint(cmd.OutOrStdout(), imageTable(l))
		return nil
	}
	i.addFlags(cmd)
	cmd.AddCommand(newImagesPrune(), newImagesVerify())
	return cmd
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func imageTable(l image.Listing) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REF\tDIGEST\tSIZE\tUSED BY\tLAST USED")
	for _, e := range l.Images {
		users, used := fmt.Sprint(len(e.UsedBy)), age(e.LastUsed)
		switch {
		case l.Unknown != "":
			users = "?"
		case len(e.UsedBy) > 0:
			used = "now"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", tagOf(e.Tags), short(e.Digest), image.HumanBytes(e.Bytes), users, used)
	}
	_ = w.Flush()
	limit := "without a budget"
	if l.Budget > 0 {
		limit = "of a budget of " + image.HumanBytes(l.Budget)
	}
	if l.Unknown != "" {
		fmt.Fprintf(&b, "who uses the images is not known: %s\n", l.Unknown)
	}
	if l.Reserve > 0 {
		fmt.Fprintf(&b, "%s %s; %s free, %s of that in reserve\n",
			image.HumanBytes(l.Bytes), limit, image.HumanBytes(l.Free), image.HumanBytes(l.Reserve))
	}
	return b.String()
}

func tagOf(tags []string) string {
	switch len(tags) {
	case 0:
		return "-"
	case 1:
		return tags[0]
	}
	return fmt.Sprintf("%s (+%d)", tags[0], len(tags)-1)
}

// short is as much of a digest as tells images apart.
func short(d digest.Digest) string {
	const enough = 12
	if hex := d.Encoded(); len(hex) > enough {
		return d.Algorithm().String() + ":" + hex[:enough]
	}
	return d.String()
}

func newImagesPrune() *cobra.Command {
	var i imaging
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove every image that no machine needs",
		Long: `Remove every image that no machine needs. What was handed out in the last five minutes stays, and so
does everything if it cannot be told for sure who needs what.`,
		Example: `  cloud-hypervisor-provider images prune --dry-run
  cloud-hypervisor-provider images prune`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, _, err := i.daemon(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Minute)
			defer cancel()
			p, err := client.Prune(ctx, dryRun)
			if err != nil {
				return imagesWayOut(err)
			}
			if i.output == "json" {
				return printJSON(cmd.OutOrStdout(), p)
			}
			fmt.Fprint(cmd.OutOrStdout(), pruneText(p, dryRun))
			return nil
		},
	}
	i.addFlags(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	return cmd
}

func pruneText(p image.Pruned, dryRun bool) string {
	verb, freed := "removed", "freed"
	if dryRun {
		verb, freed = "would be removed", "would be freed"
	}
	var b strings.Builder
	var total int64
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range p.Removed {
		total += r.Bytes
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", verb, tagOf(r.Tags), short(r.Digest), image.HumanBytes(r.Bytes))
	}
	_ = w.Flush()
	fmt.Fprintf(&b, "%d images %s, %s %s; %d are in use", len(p.Removed), verb, image.HumanBytes(total), freed, p.InUse)
	if p.Busy > 0 {
		fmt.Fprintf(&b, ", %d were used a moment ago or are being pulled", p.Busy)
	}
	return b.String() + "\n"
}

func newImagesVerify() *cobra.Command {
	var i imaging
	cmd := &cobra.Command{
		Use:   "verify [IMAGE...]",
		Short: "Read images in the cache and prove that every byte is right",
		Long: `Read images in the cache, all of them if none is named, and prove that every byte is right. What is not
is thrown away and pulled again when a machine needs it. An image is named by its tag, its digest, or the
beginning of its digest. The exit code is 1 if anything was wrong.`,
		Example: `  cloud-hypervisor-provider images verify
  cloud-hypervisor-provider images verify registry.example/os/debian:13 sha256:4f0c0e7e7c0f`,
		ValidArgsFunction: i.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, _, err := i.daemon(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			l, err := client.List(cmd.Context())
			if err != nil {
				return imagesWayOut(err)
			}
			entries, err := named(l.Images, args)
			if err != nil {
				return err
			}
			return verifyAll(cmd, client, entries)
		},
	}
	i.addFlags(cmd)
	cmd.Flags().Lookup("output").Hidden = true
	return cmd
}

func verifyAll(cmd *cobra.Command, client *operator.Client, entries []image.Entry) error {
	bad := 0
	for _, e := range entries {
		err := client.Verify(cmd.Context(), e.Digest)
		var answered *operator.Error
		if err != nil && !errors.As(err, &answered) {
			return imagesWayOut(err)
		}
		result := "right"
		if err != nil {
			bad++
			result = answered.Kind + ": " + answered.Message
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s  %s  %s\n", short(e.Digest), tagOf(e.Tags), result)
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d images were not right; what is missing now is pulled again when a machine needs it", bad, len(entries))
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%d images are right\n", len(entries))
	return nil
}

// named returns the entries that are meant, all if none is named.
func named(entries []image.Entry, names []string) ([]image.Entry, error) {
	if len(names) == 0 {
		return entries, nil
	}
	var out []image.Entry
	for _, name := range names {
		var found []image.Entry
		for _, e := range entries {
			if slices.Contains(e.Tags, name) || strings.HasPrefix(e.Digest.String(), name) || strings.HasPrefix(e.Digest.Encoded(), name) {
				found = append(found, e)
			}
		}
		switch len(found) {
		case 0:
			return nil, fmt.Errorf("there is no image %q in the cache; \"cloud-hypervisor-provider images\" lists them", name)
		case 1:
			out = append(out, found[0])
		default:
			return nil, fmt.Errorf("%q may mean %d images; write more of the digest", name, len(found))
		}
	}
	return out, nil
}

// completeImages offers tags and digests to the shell.
func (i *imaging) completeImages(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	i.output = "table"
	client, _, err := i.daemon(io.Discard)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	l, err := client.List(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, e := range l.Images {
		names = append(names, e.Tags...)
		names = append(names, short(e.Digest)+"\t"+tagOf(e.Tags))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
