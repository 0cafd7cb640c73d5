// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// crashDirEnv makes the test binary a writer that is killed.
const crashDirEnv = "STORE_TEST_CRASH_DIR"

// crashWriter creates machines for ever and prints each id once it is acknowledged.
func crashWriter(dir string) {
	s, err := Open(context.Background(), Options{Dir: dir})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var mu sync.Mutex
	for i := range 8 {
		go func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("%d-%d-%d", os.Getpid(), i, n)
				if _, err := s.Create(context.Background(), testMachine(id)); err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Println("ok", id)
				mu.Unlock()
			}
		}()
	}
	time.Sleep(time.Minute) // the parent kills long before
}

func TestEveryAcknowledgedMachineSurvivesSIGKILL(t *testing.T) {
	dir := t.TempDir()
	acknowledged := map[string]bool{}
	for round := range 10 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashDirEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			id, ok := strings.CutPrefix(lines.Text(), "ok ")
			if !ok {
				t.Fatalf("writer: %s", lines.Text())
			}
			acknowledged[id] = true
			if n == 20+17*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd.Wait()
		s := open(t, dir)
		for id := range acknowledged {
			if _, err := s.Get(id); err != nil {
				t.Fatalf("round %d: acknowledged machine is lost: %v", round, err)
			}
		}
		if q := s.Quarantined(); len(q) > 0 {
			t.Fatalf("round %d: quarantined: %v", round, q)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d acknowledged machines in 10 rounds", len(acknowledged))
}
