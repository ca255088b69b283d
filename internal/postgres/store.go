package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// storeConns: one each for claim, heartbeat, upkeep, and what the other loops ask now and then, so that none of them waits
// for another or for the application's handlers. The listener takes its connection out of the pool, which may then open
// another one.
const storeConns = 4

const pingTimeout = 5 * time.Second

// outcomeLockTimeout is how long storing outcomes waits for a row that another session has locked.
const outcomeLockTimeout = "100ms"

// Store is a worker's side of the database. It works on small pools of its own; transactional handlers get their
// transaction from the application's pool.
type Store struct {
	app      *pgxpool.Pool
	pool     *pgxpool.Pool
	work     *session
	q        *gen.Queries
	outcomes *session // one connection, with a lock_timeout
	ended    *gen.Queries

	clock       func() time.Time // of this machine; only to be compared with the database's
	skew        atomic.Int64     // how far it is ahead of that, in microseconds
	listenCheck time.Duration
	purges      purges
}

var _ engine.Store = (*Store)(nil)

// TxType is the type of the transaction that transactional handlers get.
func TxType() reflect.Type { return reflect.TypeFor[pgx.Tx]() }

func (s *Store) TxType() reflect.Type { return TxType() }

func (s *Store) TxLimit() int { return int(s.app.Config().MaxConns) }

func (s *Store) TxFull() bool {
	stat := s.app.Stat()
	return stat.AcquiredConns() >= stat.MaxConns()
}

// Open makes a worker's store. The caller closes it.
func Open(ctx context.Context, app *pgxpool.Pool) (*Store, error) {
	if app == nil {
		return nil, errors.New("jobgen: the pool given to worker.New is nil")
	}
	var r route
	work, err := openPool(ctx, app, &r, storeConns, "0")
	if err != nil {
		return nil, err
	}
	outcomes, err := openPool(ctx, app, &r, 1, outcomeLockTimeout)
	if err != nil {
		work.pool.Close()
		return nil, err
	}
	return &Store{app: app, pool: work.pool, work: work, q: gen.New(work), outcomes: outcomes, ended: gen.New(outcomes), clock: machineClock, listenCheck: listenCheck}, nil
}

// openPool makes a pool like the application's, with the settings of a worker's session.
func openPool(ctx context.Context, app *pgxpool.Pool, r *route, conns int32, lockTimeout string) (*session, error) {
	config := app.Config()
	config.MaxConns, config.MinConns, config.MinIdleConns = conns, 0, 0
	// A connection that has died without a word while it was idle is found out within this time, not by the statement's
	// own limit.
	config.PingTimeout = pingTimeout
	config.ConnConfig.RuntimeParams["application_name"] = "jobgen worker"
	before, after := config.BeforeConnect, config.AfterConnect
	config.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		r.prepare(c)
		if before != nil {
			if err := before(ctx, c); err != nil {
				return err
			}
		}
		c.DialFunc = watched(c.DialFunc)
		return nil
	}
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		if after != nil {
			if err := after(ctx, c); err != nil {
				return err
			}
		}
		return r.begin(ctx, c, lockTimeout)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return &session{pool, r, lockTimeout}, err
}

func (s *Store) Close() {
	s.pool.Close()
	s.outcomes.pool.Close()
}

func (s *Store) Check(ctx context.Context) error { return checkVersion(ctx, s.q) }

func (s *Store) Register(ctx context.Context, w engine.Worker, lease time.Duration) error {
	arg := gen.RegisterParams{
		ID: w.ID, Host: w.Host, Pid: int32(w.PID), Build: w.Build, Queues: w.Queues, Slots: int32(w.Slots), Pooled: !s.work.direct(ctx), LeaseUs: lease.Microseconds(),
	}
	arg.Kinds, arg.Versions = kinds(w.Kinds, w.Locks)
	for _, k := range slices.Concat(w.Kinds, w.Locks) {
		arg.TimeoutsUs = append(arg.TimeoutsUs, k.Timeout.Microseconds())
	}
	if _, err := s.Now(ctx); err != nil { // measures the skew
		return err
	}
	arg.SkewUs = s.skew.Load()
	return translate(s.q.Register(ctx, arg))
}

// machineClock is Go's clock, which decides nothing: operators want to know how wrong it is.
func machineClock() time.Time { return time.Now() } //nolint:forbidigo // it is only compared with the database's

// compareClocks asks for the database's time by fn, and notes how far this machine's clock is ahead of it: in the middle of
// the round trip, as far as anybody can know.
func (s *Store) compareClocks(fn func() (time.Time, error)) {
	sent := s.clock()
	theirs, err := fn()
	if took := s.clock().Sub(sent); err == nil && (took < time.Second || s.skew.Load() == 0) { // a statement that had to wait tells little
		s.skew.Store(sent.Add(took / 2).Sub(theirs).Microseconds())
	}
}

func (s *Store) Leave(ctx context.Context, id uuid.UUID) error {
	n, err := s.q.Leave(ctx, id)
	if err == nil && n == 0 {
		err = s.q.GiveUp(ctx, id)
	}
	return translate(err)
}

func (s *Store) Heartbeat(ctx context.Context, id uuid.UUID, lease time.Duration, load engine.Load, holds []engine.Hold) (engine.Beat, error) {
	arg := gen.HeartbeatParams{
		WorkerID: id, LeaseUs: lease.Microseconds(), Slots: int32(load.Slots), Running: int32(load.Running), Stuck: int32(load.Stuck), SkewUs: s.skew.Load(),
	}
	arg.Ids, arg.Fences = split(holds)
	var row gen.HeartbeatRow
	var err error
	s.compareClocks(func() (time.Time, error) {
		row, err = s.q.Heartbeat(ctx, arg)
		return row.DbNow, err
	})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		// Connections may have died without a word: the next try shall have a new one.
		s.pool.Reset()
		s.outcomes.pool.Reset()
	}
	return engine.Beat{Renewed: row.Renewed, Now: row.DbNow, Gone: row.Gone}, translate(err)
}

func (s *Store) Claim(ctx context.Context, w *engine.Worker, marks []engine.Mark, spent []int64, sweep bool, n int) ([]engine.Claimed, time.Time, error) {
	names, versions := kinds(w.Kinds)
	arg := gen.ClaimParams{WorkerID: w.ID, Kinds: names, Versions: versions, N: int32(n), Spent: orEmpty(spent), Sweep: sweep}
	for _, m := range marks {
		arg.Queues, arg.Priorities = append(arg.Queues, m.Queue), append(arg.Priorities, int16(m.Priority))
		arg.MarkAts, arg.MarkIds = append(arg.MarkAts, m.At), append(arg.MarkIds, m.ID)
		arg.Limits = append(arg.Limits, int32(cmp.Or(m.Limit, n)))
	}
	var (
		row              gen.ClaimRow
		queue, kind, key pgtype.DriverBytes // the connection's memory, until the next row
		dest             = fields(&row, map[string]any{"Queue": &queue, "Kind": &kind, "Key": &key})
		out              = make([]engine.Claimed, 0, n)
	)
	_, err := each(s.work, func(rows pgx.Rows) error {
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		row.Queue, row.Kind = intern(queue, w.Queues), intern(kind, names)
		out = append(out, claimed(&row))
		out[len(out)-1].Key = string(key)
		return nil
	}).Claim(ctx, arg)
	if err != nil || len(out) == 0 {
		return nil, time.Time{}, translate(err)
	}
	return out, row.DbNow, nil
}

func (s *Store) SuspectWaiting(ctx context.Context, w *engine.Worker) (bool, error) {
	names, versions := kinds(w.Kinds, w.Locks)
	is, err := s.q.SuspectWaiting(ctx, gen.SuspectWaitingParams{Queues: w.Queues, Kinds: names, Versions: versions})
	return is, translate(err)
}

func (s *Store) ClaimSuspect(ctx context.Context, w *engine.Worker) ([]engine.Claimed, error) {
	names, versions := kinds(w.Kinds)
	rows, err := s.q.ClaimSuspect(ctx, gen.ClaimSuspectParams{WorkerID: w.ID, Queues: w.Queues, Kinds: names, Versions: versions})
	var out []engine.Claimed
	for _, r := range rows {
		out = append(out, claimed((*gen.ClaimRow)(&r)))
	}
	return out, translate(err)
}

func claimed(r *gen.ClaimRow) engine.Claimed {
	c := engine.Claimed{
		ID: r.ID, Fence: r.Fence, Queue: r.Queue, Kind: r.Kind, Version: int(r.Version), Priority: int(r.Priority),
		Attempt: int(r.Attempt), MaxAttempts: int(r.MaxAttempts), Crashes: int(r.Crashes), Recorded: r.Recorded,
		RunAt: r.RunAt, Waited: r.DbNow.Sub(r.RunAt), Deadline: r.Deadline, Cancel: r.CancelReason, Payload: r.Payload, Headers: r.Headers,
	}
	if r.Deadline != nil {
		c.Left = r.Deadline.Sub(r.DbNow)
	}
	if r.Key != nil {
		c.Key = *r.Key
	}
	return c
}

func (s *Store) NextDue(ctx context.Context, marks []engine.Mark, later bool, within time.Duration) (time.Duration, error) {
	arg := gen.NextDueParams{WithinUs: within.Microseconds(), Later: later}
	for _, m := range marks {
		arg.Queues, arg.Priorities = append(arg.Queues, m.Queue), append(arg.Priorities, int16(m.Priority))
		arg.MarkAts, arg.MarkIds = append(arg.MarkAts, m.At), append(arg.MarkIds, m.ID)
	}
	us, err := s.q.NextDue(ctx, arg)
	return microseconds(us), translate(err)
}

func (s *Store) Held(ctx context.Context, id uuid.UUID) (held []engine.Hold, spent []int64, err error) {
	rows, err := s.q.Held(ctx, id)
	for _, r := range rows {
		if r.ID == 0 {
			spent = append(spent, r.Fence)
		} else {
			held = append(held, engine.Hold{ID: r.ID, Fence: r.Fence})
		}
	}
	return held, spent, translate(err)
}

func (s *Store) Complete(ctx context.Context, id uuid.UUID, done []engine.Success) ([]int64, error) {
	if done[0].Then != nil {
		return s.completeThen(ctx, id, done)
	}
	c, err := complete(ctx, s.outcomes, id, done, false)
	return c.ended, err
}

// completed is what complete has done.
type completed struct {
	ended      []int64
	unrecorded []int64 // those that were to leave a record and did not, because another job has their key
	xact       int64   // in a handler's transaction: its id; 0: it is not the one that began
}

// complete takes outcomes that all stay in the archive, or else all leave a record, or none does. inTx: this completes the one
// job of a handler's transaction.
func complete(ctx context.Context, db gen.DBTX, id uuid.UUID, done []engine.Success, inTx bool) (c completed, err error) {
	numbers := make([]int64, 3*len(done))
	ids, fences := numbers[:len(done)], numbers[len(done):2*len(done)]
	c.ended = numbers[2*len(done) : 2*len(done)]
	unkeyed := !inTx
	for i, d := range done {
		ids[i], fences[i] = d.ID, d.Fence
		unkeyed = unkeyed && d.Unkeyed
	}
	if done[0].Retain > 0 {
		return archive(ctx, db, id, done, ids, fences, inTx)
	}
	if !done[0].Record {
		var row gen.CompleteRow
		dest := fields(&row, nil)
		_, err := each(db, func(rows pgx.Rows) error {
			err := rows.Scan(dest...)
			c.ended, c.xact = append(c.ended, row.ID), row.Xact
			return err
		}).Complete(ctx, gen.CompleteParams{Ids: ids, Fences: fences, WorkerID: id, InTx: inTx})
		return c, translate(err)
	}
	results, keep := make([]string, len(done)), make([]int64, len(done))
	for i, d := range done {
		results[i], keep[i] = string(d.Result), d.Keep.Microseconds()
	}
	if unkeyed {
		var ended int64
		dest := []any{&ended}
		_, err = each(db, func(rows pgx.Rows) error {
			err := rows.Scan(dest...)
			c.ended = append(c.ended, ended)
			return err
		}).CompleteUnkeyed(ctx, gen.CompleteUnkeyedParams{Ids: ids, Fences: fences, WorkerID: id, Results: results, KeepUs: keep})
		return c, translate(err)
	}
	var row gen.CompleteRecordedRow
	dest := fields(&row, nil)
	_, err = each(db, func(rows pgx.Rows) error {
		err := rows.Scan(dest...)
		if c.ended, c.xact = append(c.ended, row.ID), row.Xact; !row.Recorded {
			c.unrecorded = append(c.unrecorded, row.ID)
		}
		return err
	}).CompleteRecorded(ctx, gen.CompleteRecordedParams{Ids: ids, Fences: fences, WorkerID: id, Results: results, KeepUs: keep, InTx: inTx})
	return c, translate(err)
}

// overtaken are those of the unrecorded whose key's work another job has done. Of the others the key was handed over while they ran.
func overtaken(ctx context.Context, q *gen.Queries, done []engine.Success, unrecorded []int64) ([]int64, error) {
	if len(unrecorded) == 0 {
		return nil, nil
	}
	var arg gen.HandedOverParams
	for _, d := range done {
		if slices.Contains(unrecorded, d.ID) {
			arg.Ids, arg.Kinds, arg.Keys = append(arg.Ids, d.ID), append(arg.Kinds, d.Kind), append(arg.Keys, d.Key)
		}
	}
	handed, err := q.HandedOver(ctx, arg)
	if err != nil {
		return nil, translate(err)
	}
	return slices.DeleteFunc(unrecorded, func(id int64) bool { return slices.Contains(handed, id) }), nil
}

func (s *Store) Fail(ctx context.Context, id uuid.UUID, failed []engine.Failure) ([]engine.Failed, error) {
	arg := gen.FailParams{WorkerID: id, MaxSnoozes: engine.MaxSnoozes}
	for _, f := range failed {
		arg.Ids, arg.Fences = append(arg.Ids, f.ID), append(arg.Fences, f.Fence)
		arg.DelaysUs = append(arg.DelaysUs, f.Delay.Microseconds())
		arg.Permanents, arg.Snoozes = append(arg.Permanents, f.Permanent), append(arg.Snoozes, f.Snooze)
		arg.Errors = append(arg.Errors, f.Error)
	}
	rows, err := s.ended.Fail(ctx, arg)
	out := make([]engine.Failed, len(rows))
	for i, r := range rows {
		out[i] = engine.Failed{ID: r.ID, Dead: r.Dead, Snoozed: r.Snoozed}
	}
	return out, translate(err)
}

func (s *Store) Release(ctx context.Context, id uuid.UUID, holds []engine.Hold) ([]int64, error) {
	ids, fences := split(holds)
	back, err := s.ended.Release(ctx, gen.ReleaseParams{Ids: ids, Fences: fences, WorkerID: id})
	return back, translate(err)
}

func (s *Store) MarkLost(ctx context.Context) ([]engine.Lost, error) {
	rows, err := s.q.MarkLost(ctx)
	var out []engine.Lost
	for _, r := range rows {
		out = append(out, engine.Lost{ID: r.ID, Host: r.Host, PID: int(r.Pid), LastBeat: r.BeatAt})
	}
	return out, translate(err)
}

func (s *Store) NoteUnclaimed(ctx context.Context, after int64, n int) (int64, error) {
	upto, err := s.q.NoteUnclaimed(ctx, gen.NoteUnclaimedParams{After: after, N: int32(n)})
	return upto, translate(err)
}

func (s *Store) Reclaim(ctx context.Context, n, maxCrashes int, backoff time.Duration, orphans bool) ([]engine.Reclaimed, error) {
	rows, err := s.q.Reclaim(ctx, gen.ReclaimParams{N: int32(n), MaxCrashes: int32(maxCrashes), BackoffUs: backoff.Microseconds(), Orphans: orphans})
	var out []engine.Reclaimed
	for _, r := range rows {
		out = append(out, engine.Reclaimed{ID: r.ID, Queue: r.Queue, Kind: r.Kind, Attempt: int(r.Attempt), Crashes: int(r.Crashes), Worker: r.WorkerID, Dead: r.Dead})
	}
	return out, translate(err)
}

func (s *Store) Sleep(ctx context.Context, w *engine.Worker) (int, error) {
	n, err := s.q.Sleep(ctx, gen.SleepParams{Queues: w.Queues, WorkerID: w.ID, Kinds: allKinds(w)})
	return int(n), translate(err)
}

func (s *Store) Awake(ctx context.Context, id uuid.UUID) error { return translate(s.q.Awake(ctx, id)) }

// listenCheck is how long a silent connection is trusted before it is asked whether it is alive: it looks no different from
// one on which there is nothing to hear.
const listenCheck = 20 * time.Second

// SetListenCheck is for tests, before Listen.
func (s *Store) SetListenCheck(d time.Duration) { s.listenCheck = d }

// SetClock is for tests, before Register.
func (s *Store) SetClock(clock func() time.Time) { s.clock = clock }

// controlPayload is what a notification carries that tells a worker to read its Control; a wake-up carries nothing.
const controlPayload = "control"

func (s *Store) Signs(ctx context.Context) (engine.Signs, error) {
	row, err := s.q.Signs(ctx)
	return engine.Signs{Fleet: int(row.Fleet), Lost: row.Lost, Suspects: row.Suspects, Asked: row.Decided || row.Cancels}, translate(err)
}

func (s *Store) Control(ctx context.Context, w *engine.Worker) (c engine.Control, err error) {
	row, err := s.q.Control(ctx, gen.ControlParams{Queues: w.Queues, WorkerID: w.ID})
	for i, name := range row.Queues {
		c.Queues = append(c.Queues, engine.Queue{Name: name, Paused: row.Paused[i], Weight: int(row.Weights[i]), Slots: int(row.Slots[i])})
	}
	for i, id := range row.CancelIds {
		c.Cancels = append(c.Cancels, engine.Cancel{ID: id, Reason: row.CancelReasons[i]})
	}
	return c, translate(err)
}

func (s *Store) Listen(ctx context.Context, id uuid.UUID, ready, woken, controlled func()) error {
	pooled, err := s.pool.Acquire(ctx)
	switch {
	case err == nil && s.work.route.kind.Load() == shared:
		pooled.Release()
		return engine.ErrDeaf
	case errors.Is(err, errShared):
		return engine.ErrDeaf
	case err != nil:
		return translate(err)
	}
	conn := pooled.Hijack()
	defer conn.Close(context.WithoutCancel(ctx))
	// LISTEN takes no parameter and sqlc no LISTEN: the one statement that is not under queries/.
	begin, cancel := context.WithTimeout(ctx, s.listenCheck)
	defer cancel()
	if _, err := conn.Exec(begin, "LISTEN "+pgx.Identifier{"jobgen_" + id.String()}.Sanitize()); err != nil {
		return translate(err)
	}
	ready()
	for {
		wait, cancel := context.WithTimeout(ctx, s.listenCheck)
		n, err := conn.WaitForNotification(wait)
		quiet := wait.Err() != nil
		cancel()
		switch {
		case err == nil && n.Payload == controlPayload:
			controlled()
		case err == nil:
			woken()
		case ctx.Err() != nil:
			return ctx.Err()
		case quiet && !conn.IsClosed():
			check, cancel := context.WithTimeout(ctx, s.listenCheck/4)
			err := conn.Ping(check)
			cancel()
			if err != nil {
				return fmt.Errorf("listening connection is dead: %w", err)
			}
		default:
			return err
		}
	}
}

func kinds(lists ...[]engine.Kind) (names []string, versions []int32) {
	for _, list := range lists {
		for _, k := range list {
			names, versions = append(names, k.Name), append(versions, int32(k.Version))
		}
	}
	return names, versions
}

func allKinds(w *engine.Worker) (names []string) {
	names, _ = kinds(w.Kinds, w.Locks)
	return names
}

func split(holds []engine.Hold) (ids, fences []int64) {
	ids, fences = make([]int64, len(holds)), make([]int64, len(holds))
	for i, h := range holds {
		ids[i], fences[i] = h.ID, h.Fence
	}
	return ids, fences
}
