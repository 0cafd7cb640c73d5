// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// These make the test binary a writer that is killed, or that kills itself at one of the points of killPoints.
const (
	crashDirEnv   = "STORE_TEST_CRASH_DIR"
	crashPointEnv = "STORE_TEST_CRASH_POINT"
)

// killPoints are the moments at which the writer kills itself, now and then; "" leaves it to the parent.
func killPoints() []string {
	return []string{"", "before sync", "after sync", "before commit", "after commit"}
}

// crashHooks make a writer with a small journal, so that checkpoints and new rounds of the journal come all the time.
func crashHooks(point string) hooks {
	kill := func(at string) {
		if at == point && rand.IntN(40) == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	return hooks{
		reserve: 64 << 10, checkpointAfter: time.Millisecond,
		sync: func(f *os.File) error {
			kill("before sync")
			defer kill("after sync")
			return syncData(f)
		},
		commit: func(tx *bolt.Tx) error {
			kill("before commit")
			defer kill("after commit")
			return tx.Commit()
		},
	}
}

// crashWriter creates machines, changes each and removes some, for ever, and prints what is acknowledged.
func crashWriter(dir string) {
	s, err := Open(context.Background(), Options{Dir: dir, hooks: crashHooks(os.Getenv(crashPointEnv))})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var mu sync.Mutex
	say := func(what, id string, err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(what, id)
	}
	for i := range 8 {
		go func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("%d-%d-%d", os.Getpid(), i, n)
				_, err := s.Create(context.Background(), testMachine(id))
				say("created", id, err)
				_, err = s.UpdateRecord(context.Background(), id, func(r *machine.Record) error { r.Restarts = 1; return nil })
				say("changed", id, err)
				if n%3 == 0 {
					mu.Lock()
					fmt.Println("removing", id)
					mu.Unlock()
					say("removed", id, s.Remove(context.Background(), id))
				}
			}
		}()
	}
	time.Sleep(time.Minute) // the parent kills long before
}

// runCrashWriter runs a writer until it is killed, and notes the last word about each machine.
func runCrashWriter(t *testing.T, dir, point string, limit int, words map[string]string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDirEnv+"="+dir, crashPointEnv+"="+point)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		word, id, ok := strings.Cut(lines.Text(), " ")
		if !ok || word == "error" {
			t.Fatalf("writer: %s", lines.Text())
		}
		words[id] = word
		if n == limit {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
}

func TestEveryAcknowledgedWriteSurvivesSIGKILL(t *testing.T) {
	for _, point := range killPoints() {
		t.Run("killed "+point, func(t *testing.T) {
			dir := t.TempDir()
			words := map[string]string{}
			for round := range 6 {
				runCrashWriter(t, dir, point, 20+170*round, words)
				s := openWith(t, Options{Dir: dir, hooks: crashHooks("")})
				for id, word := range words {
					m, err := s.Get(id)
					switch {
					case word == "removing":
					case word == "removed" && err == nil:
						t.Fatalf("round %d: removed machine %s is back", round, id)
					case word != "removed" && err != nil:
						t.Fatalf("round %d: acknowledged machine %s is lost: %v", round, id, err)
					case word == "changed" && m.Record.Restarts != 1:
						t.Fatalf("round %d: acknowledged change of %s is lost", round, id)
					}
				}
				if q := s.Quarantined(); len(q) > 0 {
					t.Fatalf("round %d: quarantined: %v", round, q)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%d machines", len(words))
		})
	}
}
