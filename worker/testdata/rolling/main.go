// Command rolling is the program of TestG2RollingDeploy. It is built from this source against the library of today and against
// the one before the newest migration, so it uses only what both have.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

type task struct {
	N int `json:"n"`
}

var (
	plain = &jobs.Spec[task, int]{Kind: "rolling.plain", Queue: "q", Key: key, Backoff: jobs.Backoff{Base: time.Millisecond}}
	inTx  = &jobs.Spec[task, int]{Kind: "rolling.tx", Queue: "q", Key: key, Backoff: jobs.Backoff{Base: time.Millisecond}}
)

func key(k *jobs.KeyBuilder, t task) { k.Int(int64(t.N)) }

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run does one thing: migrate, enqueue FROM TO, or work NAME until standard input ends.
func run(ctx context.Context, what string, args []string) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	switch what {
	case "migrate":
		return jobs.Migrate(ctx, pool)
	case "enqueue":
		from, _ := strconv.Atoi(args[0])
		to, _ := strconv.Atoi(args[1])
		for n := from; n < to; n++ {
			if _, err := jobs.Enqueue(ctx, pool, plain, task{n}); err != nil {
				return err
			}
			if _, err := jobs.Enqueue(ctx, pool, inTx, task{n}); err != nil {
				return err
			}
		}
		return nil
	}
	var r worker.Registry
	worker.Handle(&r, plain, func(ctx context.Context, j *jobs.Job[task]) (int, error) {
		if j.Payload.N%5 == 0 && j.Attempt == 1 {
			return 0, fmt.Errorf("the first attempt fails")
		}
		_, err := pool.Exec(ctx, "INSERT INTO effect VALUES ('plain', $1, $2)", j.Payload.N, args[0])
		return j.Payload.N, err
	})
	worker.HandleTx(&r, inTx, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (int, error) {
		_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ('tx', $1, $2)", j.Payload.N, args[0])
		return j.Payload.N, err
	})
	w, err := worker.New(pool, &r, worker.Config{Concurrency: 8, Lease: time.Second})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		stop()
	}()
	return w.Run(ctx)
}
