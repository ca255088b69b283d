package jobs_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

func TestG12WhenAJobRunsIsCountedByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	f := open(t)
	century := 100 * 365 * 24 * time.Hour
	berlin, kiribati := time.FixedZone("Berlin", 3600), time.FixedZone("Kiribati", 14*3600)
	noon := time.Date(2031, 5, 6, 12, 0, 0, 123456789, time.UTC)
	past := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
	far := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	for _, zone := range []string{"UTC", "Asia/Shanghai", "America/Los_Angeles"} {
		config := f.pool.Config()
		config.ConnConfig.RuntimeParams["timezone"] = zone
		pool, err := pgxpool.NewWithConfig(f.ctx(), config)
		f.no(err)
		defer pool.Close()
		for _, c := range []struct {
			name string
			opts []jobs.Option
			in   time.Duration // from now, unless
			at   time.Time
		}{
			{"by default", nil, 0, time.Time{}},
			{"in an hour", []jobs.Option{jobs.In(time.Hour)}, time.Hour, time.Time{}},
			{"in a hundred years", []jobs.Option{jobs.In(century)}, century, time.Time{}},
			{"an hour ago", []jobs.Option{jobs.In(-time.Hour)}, 0, time.Time{}},
			{"as early as can be", []jobs.Option{jobs.In(-1 << 63)}, 0, time.Time{}},
			{"at noon", []jobs.Option{jobs.At(noon)}, 0, noon},
			{"at noon, said in Berlin", []jobs.Option{jobs.At(noon.In(berlin))}, 0, noon},
			{"at noon, said in Kiribati", []jobs.Option{jobs.At(noon.In(kiribati))}, 0, noon},
			{"at a time that has passed", []jobs.Option{jobs.At(past)}, 0, time.Time{}},
			{"at no time", []jobs.Option{jobs.At(time.Time{})}, 0, time.Time{}},
			{"at noon but not within an hour", []jobs.Option{jobs.In(time.Hour), jobs.At(noon)}, 0, noon},
			{"in an hour though its time has passed", []jobs.Option{jobs.At(past), jobs.In(time.Hour)}, time.Hour, time.Time{}},
			{"at the end of time", []jobs.Option{jobs.At(far), jobs.In(century)}, 0, far},
		} {
			// Each way there is to enqueue.
			for way, enqueue := range map[string]func(key string) error{
				"one": func(string) error { _, err := jobs.Enqueue(f.ctx(), pool, plain, order{}, c.opts...); return err },
				"one with a key": func(key string) error {
					_, err := jobs.Enqueue(f.ctx(), pool, keyed, order{ID: key}, c.opts...)
					return err
				},
				"many": func(string) error {
					_, err := jobs.EnqueueMany(f.ctx(), pool, plain, []order{{}, {}}, c.opts...)
					return err
				},
				"many that are copied": func(string) error {
					_, err := jobs.EnqueueMany(f.ctx(), pool, plain, orders(postgres.CopyFrom), c.opts...)
					return err
				},
				"many with a key": func(key string) error {
					_, err := jobs.EnqueueMany(f.ctx(), pool, keyed, []order{{ID: key}, {ID: key + "'"}}, c.opts...)
					return err
				},
				"one that revives": func(key string) error {
					_, err := jobs.Enqueue(f.ctx(), pool, keyed, order{ID: key})
					f.no(err)
					f.exec("UPDATE jobgen.jobs SET status = 'dead'")
					_, err = jobs.Enqueue(f.ctx(), pool, keyed, order{ID: key}, c.opts...)
					return err
				},
			} {
				f.exec("TRUNCATE jobgen.jobs, jobgen.job_result")
				from := value[time.Time](t, f.pool, "SELECT clock_timestamp()")
				if err := enqueue(fmt.Sprint(zone, c.name, way)); err != nil {
					t.Fatalf("%s, %s, %s: %v", zone, c.name, way, err)
				}
				to := value[time.Time](t, f.pool, "SELECT clock_timestamp()")
				from, to = from.Add(c.in), to.Add(c.in)
				if !c.at.IsZero() {
					from, to = c.at.Truncate(time.Microsecond), c.at.Truncate(time.Microsecond)
				}
				for _, got := range append(jobtest.Enqueued[order](t, f.pool, plain.Kind), jobtest.Enqueued[order](t, f.pool, keyed.Kind)...) {
					if got.RunAt.Before(from) || got.RunAt.After(to) {
						t.Errorf("%s, %s, %s: runs at %s, want %s to %s", zone, c.name, way, got.RunAt, from, to)
					}
				}
			}
		}
	}
}

func TestJobsOfOneTransactionKeepTheirOrder(t *testing.T) {
	t.Parallel()
	f := open(t)
	tx := f.begin(pgx.TxOptions{})
	defer tx.Rollback(context.Background())
	var want []int64
	for i := range 50 {
		var id int64
		if i%2 == 0 {
			ref, err := jobs.Enqueue(f.ctx(), tx, plain, order{})
			f.no(err)
			id = ref.ID
		} else {
			ref, err := jobs.Enqueue(f.ctx(), tx, keyed, order{ID: fmt.Sprint(i)})
			f.no(err)
			id = ref.ID
		}
		want = append(want, id)
	}
	f.no(tx.Commit(f.ctx()))
	for i, id := range want {
		if c := f.one(f.claim(1)); c.ID != id {
			t.Fatalf("claim %d took job %d, want %d", i, c.ID, id)
		}
	}
}
