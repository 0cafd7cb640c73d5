// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"sync"
	"time"
)

// ptyPoll is how often a pty is looked at for somebody opening its other end. The real one polls every
// 500 ms.
const ptyPoll = 50 * time.Millisecond

// ptyPort is a serial line on a pseudo terminal: output waits until somebody opens the other end.
type ptyPort struct {
	p     *pty
	input func([]byte)
	stop  chan struct{}
	wg    sync.WaitGroup

	mu   sync.Mutex
	open bool
	buf  replayBuffer
}

func newPTYPort(m *machine, p *pty) *ptyPort {
	port := &ptyPort{p: p, input: m.guest.input, stop: make(chan struct{})}
	port.wg.Add(1)
	go port.loop()
	return port
}

func (p *ptyPort) loop() {
	defer p.wg.Done()
	buf := make([]byte, 64)
	for {
		select {
		case <-p.stop:
			return
		default:
		}
		readable, hungUp := p.p.poll(ptyPoll)
		p.mu.Lock()
		p.open = !hungUp
		if p.open {
			p.buf.flush(p.p.write)
		}
		p.mu.Unlock()
		if readable {
			if n := p.p.read(buf); n > 0 {
				p.input(typed(buf[:n]))
			}
		}
		if hungUp {
			time.Sleep(ptyPoll)
		}
	}
}

func (p *ptyPort) write(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buf.add(b)
	if p.open {
		p.buf.flush(p.p.write)
	}
}

func (p *ptyPort) close() {
	close(p.stop)
	p.wg.Wait()
}
