package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// The hand-written loop is the floor: what somebody writes who wants only speed, on jobgen's table with its indexes and
// checks, and as durable. It claims in batches on one connection while another removes the batch before. It has no lease,
// checks no fence, decodes no payload, runs one handler at a time, and has no answer to a failure, a crash, a late commit
// or a held snapshot.
const handwrittenBatch = 500

// The order is that of the index jobs_claim to the letter; otherwise each claim would sort the whole queue.
const handwrittenClaim = `
UPDATE jobgen.jobs
SET status = 'running', fence = $1, worker_id = $2, attempt = attempt + 1, claimed_at = clock_timestamp()
WHERE id = ANY(ARRAY(
  SELECT id FROM jobgen.jobs
  WHERE NOT dead AND crashes < 2 AND worker_id IS NULL AND queue = $3 AND run_at <= now()
  ORDER BY priority DESC, run_at NULLS FIRST, id
  LIMIT $4
  FOR UPDATE SKIP LOCKED))
RETURNING id, payload`

const handwrittenComplete = `DELETE FROM jobgen.jobs WHERE id = ANY($1)`

var drainSQL = entrant{
	name: "sql", label: "hand-written SQL", peer: jobgenPeer,
	note: fmt.Sprintf("the floor: plain pgx, claim %d + delete, pipelined on two connections; no lease, no fence check", handwrittenBatch),
	seed: func(ctx context.Context, url string, n int) error { return seedJobgen(ctx, url, plainKind, n) },
	open: func(ctx context.Context, url string, n int) (*session, error) {
		return openPool(ctx, url, 2, func(ctx context.Context, pool *pgxpool.Pool) error { return handwrittenDrain(ctx, pool, n) })
	},
	verify: emptied,
}

func handwrittenDrain(ctx context.Context, pool *pgxpool.Pool, n int) error {
	r := newRoll(n)
	if err := handwrittenLoop(ctx, pool, r.call, func(context.Context) bool { return false }); err != nil {
		return err
	}
	if left := r.left.Load(); left > 0 {
		return fmt.Errorf("%d jobs not run", left)
	}
	return r.verify()
}

// handwrittenLoop goes on until there is nothing to claim and more says no.
func handwrittenLoop(ctx context.Context, pool *pgxpool.Pool, handle func(i int), more func(context.Context) bool) error {
	claimed := make(chan []int64, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(claimed)
		self := uuid.New()
		for fence := 1; ; fence++ {
			rows, err := pool.Query(ctx, handwrittenClaim, fence, self, queue, handwrittenBatch)
			if err != nil {
				return err
			}
			batch := make([]int64, 0, handwrittenBatch)
			for rows.Next() {
				var id int64
				var payload []byte
				if err := rows.Scan(&id, &payload); err != nil {
					return err
				}
				batch = append(batch, id)
			}
			if err := rows.Err(); err != nil {
				return err
			}
			if len(batch) == 0 {
				if !more(ctx) {
					return nil
				}
				continue
			}
			select {
			case claimed <- batch:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	g.Go(func() error {
		for batch := range claimed {
			for _, id := range batch {
				handle(int(id - 1)) // a fresh database numbers from 1, in the order of the payloads
			}
			tag, err := pool.Exec(ctx, handwrittenComplete, batch)
			if err != nil {
				return err
			}
			if int(tag.RowsAffected()) != len(batch) {
				return fmt.Errorf("removed %d of %d jobs", tag.RowsAffected(), len(batch))
			}
		}
		return nil
	})
	return g.Wait()
}

func enqueueSQL(conns int) entrant {
	return entrant{
		name: "sql", label: "bare INSERT", peer: jobgenPeer, note: "into jobgen's table; wakes nobody",
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openCallers(ctx, url, conns, n, func(pool *pgxpool.Pool) (call, error) {
				return insertSQL(pool), nil
			})
		},
		verify: queued,
	}
}

const handwrittenInsert = `INSERT INTO jobgen.jobs (queue, kind, payload) SELECT $1, $2, unnest($3::jsonb[]) RETURNING id`

var enqueueManySQL = entrant{
	name: "sql", label: "bare INSERT", peer: jobgenPeer, note: "one statement into jobgen's table, payloads as an array; gives back the ids; wakes nobody",
	open: func(ctx context.Context, url string, n int) (*session, error) {
		ps := payloads(n)
		return openPool(ctx, url, 1, func(ctx context.Context, pool *pgxpool.Pool) error {
			encoded, err := encode(ps)
			if err != nil {
				return err
			}
			rows, err := pool.Query(ctx, handwrittenInsert, queue, plainKind.Kind, encoded)
			if err != nil {
				return err
			}
			ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
			if err == nil && len(ids) != n {
				err = fmt.Errorf("%d ids for %d jobs", len(ids), n)
			}
			return err
		})
	},
	verify: queued,
}

var enqueueManyCopy = entrant{
	name: "copy", label: "bare COPY", peer: jobgenPeer, note: "into jobgen's table; gives back no ids; wakes nobody",
	open: func(ctx context.Context, url string, n int) (*session, error) {
		ps := payloads(n)
		return openPool(ctx, url, 1, func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.CopyFrom(ctx, pgx.Identifier{"jobgen", "jobs"}, []string{"queue", "kind", "payload"},
				pgx.CopyFromSlice(n, func(i int) ([]any, error) {
					b, err := json.Marshal(ps[i])
					return []any{queue, plainKind.Kind, b}, err
				}))
			return err
		})
	},
	verify: queued,
}
