package postgres

import (
	"context"
	"slices"
	"sync"
	"time"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

const (
	purgeChunk  = 1000 // about how many rows one statement of a purge removes, which bounds for how long it holds their locks
	purgeChunks = 20   // of dead jobs that one purge looks at while there is nothing to remove
)

// purges is how far purges have got. A chunk begins where the one before has ended, so as not to walk what that has left dead.
type purges struct {
	mu                          sync.Mutex
	results, archived, attempts *time.Time
	dead                        deadMark
}

// deadMark is a place in jobs_dead.
type deadMark struct {
	kind string
	id   int64
}

// from tells where the next chunk begins; nil: at the left end.
func (p *purges) from(of **time.Time) *time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *of
}

// upto notes how far a chunk of n rows has got. After one that was not full, the next begins at the left end again: with what
// others had locked, and what was committed late.
func (p *purges) upto(of **time.Time, n int64, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if *of = nil; n >= purgeChunk {
		*of = &at
	}
}

func (s *Store) Purge(ctx context.Context, keep engine.Keep) (done engine.Purged, err error) {
	p := &s.purges
	results, err := s.q.PurgeResults(ctx, gen.PurgeResultsParams{After: p.from(&p.results), N: purgeChunk})
	if err != nil {
		return done, translate(err)
	}
	p.upto(&p.results, results.N, results.Upto)
	archived, err := s.q.PurgeArchive(ctx, gen.PurgeArchiveParams{After: p.from(&p.archived), N: purgeChunk})
	if err != nil {
		return done, translate(err)
	}
	p.upto(&p.archived, archived.N, archived.Upto)
	after := p.from(&p.attempts)
	attempts, err := s.q.PurgeAttempts(ctx, gen.PurgeAttemptsParams{After: after, KeepUs: keep.Attempts.Microseconds(), N: purgeChunk})
	if err != nil {
		return done, translate(err)
	}
	p.upto(&p.attempts, attempts.N, attempts.Upto)
	// They do not lie in order, so what is left to the left may be much.
	rest := attempts.N < purgeChunk && after != nil
	summed, err := s.q.SumSamples(ctx, purgeChunk)
	if err != nil {
		return done, translate(err)
	}
	samples, err := s.q.PurgeSamples(ctx, gen.PurgeSamplesParams{KeepUs: keep.Samples.Microseconds(), N: purgeChunk})
	if err != nil {
		return done, translate(err)
	}
	if _, err := s.q.PurgeLooks(ctx, keep.Samples.Microseconds()); err != nil {
		return done, translate(err)
	}
	if _, err := s.q.PurgeWorkers(ctx); err != nil {
		return done, translate(err)
	}
	if _, err := s.q.PurgeStarts(ctx, purgeChunk); err != nil {
		return done, translate(err)
	}
	cancels, err := s.purgeCancels(ctx, keep.Cancelled)
	if err != nil {
		return done, translate(err)
	}
	schedules, err := s.q.PurgeSchedules(ctx, engine.KeepSchedules.Microseconds())
	if err != nil {
		return done, translate(err)
	}
	for _, r := range schedules {
		done.Schedules = append(done.Schedules, engine.Schedule{Kind: r.Kind, Name: r.Name})
	}
	done.More = rest || slices.Max([]int64{results.N, archived.N, attempts.N, summed, samples, cancels}) >= purgeChunk
	if keep.Dead > 0 {
		err = s.purgeDead(ctx, keep.Dead, &done)
	}
	return done, translate(err)
}

// purgeDead looks at the next dead jobs, from where the last purge has got to, and removes a chunk of those that died too long ago.
// Old ones lie together, more or less, so as long as some are found there may be more.
func (s *Store) purgeDead(ctx context.Context, keep time.Duration, done *engine.Purged) error {
	p := &s.purges
	p.mu.Lock()
	defer p.mu.Unlock()
	for range purgeChunks {
		row, err := s.q.PurgeDead(ctx, gen.PurgeDeadParams{AfterKind: p.dead.kind, AfterID: p.dead.id, N: purgeChunk, KeepUs: keep.Microseconds()})
		if err != nil {
			return err
		}
		if p.dead = (deadMark{row.LastKind, row.LastID}); row.Looked < purgeChunk {
			p.dead = deadMark{}
		}
		if len(row.Kinds) > 0 {
			done.Dead = make(map[string]int64, len(row.Kinds))
			for i, kind := range row.Kinds {
				done.Dead[kind] = row.Counts[i]
			}
			done.More = done.More || row.Looked == purgeChunk
			return nil
		}
		if row.Looked < purgeChunk {
			return nil
		}
	}
	return nil
}
