// Package pgproxy is the network between Postgres clients and their server, which a test can make fail: at once, for all
// connections, or at a chosen message of the protocol.
//
//	p, err := pgproxy.Start(config.ConnConfig.Config) // in front of the server that config names
//	config.ConnConfig.DialFunc = p.Dial
//	lost := p.On(pgproxy.Runs("INSERT INTO orders"), 1, pgproxy.CutDuring) // the server inserts, the client never hears of it
//	…
//	<-lost.Done()
//
// It reads as much of the protocol as it takes to tell messages and answers apart. Connections are not encrypted: to a
// client that asks for it the proxy answers as a server that cannot. An answer ends with ReadyForQuery, so a client that
// asks by Flush instead of Sync is not for it; pgx does so only on request.
package pgproxy

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// Message is one that a client sends.
type Message struct {
	Conn int    // the connection, counted from 1 in the order in which the proxy accepted them
	N    int    // counted from 1, the startup message, in each connection
	App  string // application_name, as the startup message says it
	Type byte   // of the protocol: Q Query, P Parse, B Bind, D Describe, E Execute, S Sync, …; 0 the startup message
	SQL  string // text of the statement that it brings, or names and has been seen to be prepared

	// Cancel: it is no startup message, but asks the server to cancel what another connection is at. pgx sends one when it
	// gives a connection up.
	Cancel bool
}

// Match chooses messages. It is called once for each message, in the order in which the messages come, with the proxy
// locked: it may keep what it sees, but must not call the proxy.
type Match func(Message) bool

// Runs chooses the messages with which the execution of a statement begins that has this text somewhere in it, in capitals
// or not: its Query, or the Bind of it prepared (not the Execute: the server takes the time, and may take the snapshot, at the Bind).
func Runs(text string) Match {
	text = strings.ToLower(text)
	return func(m Message) bool {
		return (m.Type == 'Q' || m.Type == 'B') && strings.Contains(strings.ToLower(m.SQL), text)
	}
}

// Act is what happens at a chosen message.
type Act int

const (
	CutBefore    Act = iota // the connection ends; the server has not got the message
	CutSent                 // the server gets the message, and the connection ends while it works on it
	CutDuring               // the server does what it is asked and answers; the connection ends, the client has nothing of it
	CutInside               // as CutDuring, but the client gets the first half of the answer
	CutShort                // as CutDuring, but the client gets all of the answer but its last byte
	CutAfter                // the client gets the answer, then the connection ends
	StrandBefore            // from the message on, nothing passes in this connection, and neither side is told
	StrandDuring            // as StrandBefore, but the server gets the message and answers
	Hold                    // the message waits for Release or ReleaseInto
)

func (a Act) String() string {
	return [...]string{"cut before", "cut sent", "cut during", "cut inside", "cut short", "cut after", "strand before", "strand during", "hold"}[a]
}

// Trigger is an act that waits for its message.
type Trigger struct {
	p     *Proxy
	match Match
	left  int // matching messages until it acts; 0: it has been disarmed, or has acted
	act   Act
	held  bool
	next  *Trigger // for the message that was held
	done  chan struct{}
}

// Done is closed when the act is done: the connection cut or stranded, the message held.
func (t *Trigger) Done() <-chan struct{} { return t.done }

// Disarm takes the act back, unless its message has come already.
func (t *Trigger) Disarm() {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	t.left = 0
}

// Release lets a held message go on, and one that would be held pass.
func (t *Trigger) Release() {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	t.left, t.held = 0, false
	t.p.changed.Broadcast()
}

// ReleaseInto has act happen at the held message.
func (t *Trigger) ReleaseInto(act Act) *Trigger {
	next := &Trigger{p: t.p, act: act, done: make(chan struct{})}
	t.p.mu.Lock()
	t.next = next
	t.p.mu.Unlock()
	t.Release()
	return next
}

// Proxy is a relay in front of a server. Its methods may be called concurrently.
type Proxy struct {
	listener         net.Listener
	network, address string
	wg               sync.WaitGroup

	mu       sync.Mutex
	changed  *sync.Cond
	toward   bool // what clients send passes
	back     bool // what the server sends passes
	refuse   bool // new connections are closed at once
	closed   bool
	accepted int
	links    map[*link]struct{}
	triggers []*Trigger
}

// Start makes a proxy in front of the server that config names. The caller closes it.
func Start(config pgconn.Config) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, toward: true, back: true, links: map[*link]struct{}{}}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	p.changed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens, for clients in other processes.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Dial connects to the proxy, whatever the address: it is for a pool's ConnConfig.DialFunc.
func (p *Proxy) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", p.Addr())
}

// Close ends all connections and the proxy.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.wg.Wait()
}

// On has act happen at the n-th message from now on that match chooses, once. Of several that wait for the same message
// the one that was set first acts; the others count it.
func (p *Proxy) On(match Match, n int, act Act) *Trigger {
	t := &Trigger{p: p, match: match, left: n, act: act, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.triggers = append(p.triggers, t)
	return t
}

// Pass says what passes from now on, in every connection, new ones included. What does not is kept and follows when it
// may, as TCP does it: until then neither side learns anything.
func (p *Proxy) Pass(toward, back bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toward, p.back = toward, back
	p.changed.Broadcast()
}

// Freeze is a black hole: nothing passes, and nobody is told.
func (p *Proxy) Freeze() { p.Pass(false, false) }

// Heal ends Pass, Freeze and Refuse. What was on its way arrives.
func (p *Proxy) Heal() {
	p.Refuse(false)
	p.Pass(true, true)
}

// Strand lets nothing pass in the connections there are, for ever and without an error, as a firewall does that has
// forgotten them. New ones work.
func (p *Proxy) Strand() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.stranded = true
	}
}

// Refuse closes new connections at once, or no longer.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Cut ends all connections in order (FIN). New ones are accepted.
func (p *Proxy) Cut() {
	for _, l := range p.all() {
		l.end()
	}
}

// Reset ends all connections without order (RST), as the restart of a firewall does. New ones are accepted.
func (p *Proxy) Reset() {
	for _, l := range p.all() {
		_ = l.client.(*net.TCPConn).SetLinger(0)
		l.end()
	}
}

func (p *Proxy) all() (links []*link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse || p.closed
		p.mu.Unlock()
		var server net.Conn
		if !refuse {
			server, err = net.Dial(p.network, p.address)
		}
		if refuse || err != nil {
			_ = client.Close()
			continue
		}
		l := &link{p: p, client: client, server: server, statements: map[string]string{}, portals: map[string]string{}}
		p.mu.Lock()
		p.accepted++
		l.last.Conn = p.accepted
		p.links[l] = struct{}{}
		p.mu.Unlock()
		p.wg.Go(l.toServer)
		p.wg.Go(l.toClient)
	}
}

// fire counts m for every trigger and returns the one whose turn it is. The proxy is locked.
func (p *Proxy) fire(m Message) (fired *Trigger) {
	kept := p.triggers[:0]
	for _, t := range p.triggers {
		if t.left > 0 && t.match(m) {
			if t.left--; t.left == 0 && fired == nil {
				fired = t
			}
		}
		if t.left > 0 {
			kept = append(kept, t)
		}
	}
	clear(p.triggers[len(kept):])
	p.triggers = kept
	return fired
}

// link is one client's connection and the one to the server that goes with it.
type link struct {
	p              *Proxy
	client, server net.Conn

	// The client's direction owns these.
	last       Message
	statements map[string]string // by name: text
	portals    map[string]string

	// The proxy's lock guards these.
	stranded bool
	mute     bool // the client hears nothing more; the connection is about to end
	gone     bool
	asked    int      // messages forwarded that are answered by a ReadyForQuery
	answered int      // ReadyForQuery seen
	due      *Trigger // acts on an answer
	dueAt    int      // on which
}

func (l *link) end() {
	l.p.mu.Lock()
	l.gone = true
	delete(l.p.links, l)
	l.p.changed.Broadcast()
	l.p.mu.Unlock()
	_ = l.client.Close()
	_ = l.server.Close()
}

// toServer relays what the client sends, a message at a time.
func (l *link) toServer() {
	defer l.end()
	r := bufio.NewReader(l.client)
	for {
		frame, err := l.read(r)
		if err != nil || !l.send(frame) {
			return
		}
	}
}

// Codes in the place of a protocol version.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

// read reads the client's next message and notes what it is.
func (l *link) read(r *bufio.Reader) (frame []byte, err error) {
	m := &l.last
	m.N++
	if m.N > 1 {
		if frame, err = readFrame(r, true); err == nil {
			m.Type, m.SQL = frame[0], l.text(frame[0], frame[5:])
		}
		return frame, err
	}
	for {
		if frame, err = readFrame(r, false); err != nil || len(frame) < 8 {
			return frame, err
		}
		switch binary.BigEndian.Uint32(frame[4:]) {
		case sslRequest, gssRequest:
			if _, err := l.client.Write([]byte{'N'}); err != nil {
				return nil, err
			}
			continue
		case cancelRequest:
			m.Cancel = true
			return frame, nil
		}
		for rest := frame[8:]; len(rest) > 1; {
			var name, value string
			name, rest = cString(rest)
			value, rest = cString(rest)
			if name == "application_name" {
				m.App = value
			}
		}
		return frame, nil
	}
}

// text is the statement that a message brings or names.
func (l *link) text(kind byte, body []byte) string {
	switch kind {
	case 'Q':
		sql, _ := cString(body)
		return sql
	case 'P':
		name, rest := cString(body)
		sql, _ := cString(rest)
		l.statements[name] = sql
		return sql
	case 'B':
		portal, rest := cString(body)
		name, _ := cString(rest)
		l.portals[portal] = l.statements[name]
		return l.portals[portal]
	case 'E':
		portal, _ := cString(body)
		return l.portals[portal]
	case 'D':
		name, _ := cString(body[1:])
		if body[0] == 'S' {
			return l.statements[name]
		}
		return l.portals[name]
	}
	return ""
}

// send forwards a message, or does what a trigger says, and tells whether the connection still stands.
func (l *link) send(frame []byte) bool {
	p, kind := l.p, l.last.Type
	p.mu.Lock()
	var sent *Trigger
	for t := p.fire(l.last); t != nil; t = t.next {
		switch t.act {
		case CutSent:
			sent, l.mute = t, true // a server that is quick must not be heard
		case CutBefore:
			p.mu.Unlock()
			l.end()
			close(t.done)
			return false
		case StrandBefore:
			l.stranded = true
			close(t.done)
		case Hold:
			t.held = true
			close(t.done)
			for t.held && !l.gone {
				p.changed.Wait()
			}
		default:
			l.due, l.dueAt = t, l.asked+1
			if strings.IndexByte("pdcf", kind) >= 0 && l.answered < l.asked { // they continue what has been asked
				l.dueAt = l.asked
			}
		}
	}
	for !l.gone && (l.stranded || !p.toward) {
		p.changed.Wait()
	}
	gone := l.gone
	if kind == 0 || kind == 'Q' || kind == 'S' || kind == 'F' {
		l.asked++
	}
	p.mu.Unlock()
	if gone {
		return false
	}
	_, err := l.server.Write(frame)
	if sent != nil {
		l.end()
		close(sent.done)
		return false
	}
	return err == nil
}

// toClient relays what the server sends. The answer on which a trigger acts is gathered first.
func (l *link) toClient() {
	defer l.end()
	p := l.p
	r := bufio.NewReader(l.server)
	var answer []byte
	for {
		frame, err := readFrame(r, true)
		p.mu.Lock()
		for !l.gone && (l.stranded || l.mute || !p.back) {
			p.changed.Wait()
		}
		gone, due := l.gone, l.due
		if l.answered+1 < l.dueAt {
			due = nil // of an earlier request
		}
		if err == nil && frame[0] == 'Z' {
			l.answered++
		}
		p.mu.Unlock()
		switch {
		case gone:
			return
		case due == nil:
			if err != nil {
				return
			}
			if _, err := l.client.Write(frame); err != nil {
				return
			}
			continue
		}
		if answer = append(answer, frame...); err == nil && !ends(frame) {
			continue
		}
		switch due.act {
		case CutInside:
			answer = answer[:len(answer)/2]
		case CutShort:
			answer = answer[:max(len(answer)-1, 0)]
		case CutAfter:
		default:
			answer = nil
		}
		_, _ = l.client.Write(answer)
		if due.act == StrandDuring {
			p.mu.Lock()
			l.stranded, l.due, l.dueAt, answer = true, nil, 0, nil
			p.mu.Unlock()
			close(due.done)
			continue
		}
		l.end()
		close(due.done)
		return
	}
}

// ends tells whether with this message the server has said all and waits for the client: ready for a query, for the data of
// a COPY, or for what authentication asks for.
func ends(frame []byte) bool {
	switch frame[0] {
	case 'Z', 'G', 'W':
		return true
	case 'R':
		const ok, saslFinal = 0, 12
		step := binary.BigEndian.Uint32(frame[5:])
		return step != ok && step != saslFinal
	}
	return false
}

// readFrame reads one message: its type, if it has one, its length, its body.
func readFrame(r *bufio.Reader, typed bool) ([]byte, error) {
	head := 4
	if typed {
		head = 5
	}
	start, err := r.Peek(head)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(start[head-4:])) + head - 4
	if n < head {
		return nil, io.ErrUnexpectedEOF
	}
	frame := make([]byte, n)
	_, err = io.ReadFull(r, frame)
	return frame, err
}

func cString(b []byte) (s string, rest []byte) {
	s, _, _ = strings.Cut(string(b), "\x00")
	return s, b[min(len(s)+1, len(b)):]
}
