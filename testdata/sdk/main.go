//go:build ignore

// Command app is an application as a user would write it, and the story of its jobs: each step prints a line or ends the
// program with an error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"

	"example.com/app/billing"
)

// handlers work as the worker called name. Charging the order whose id is hang never ends, unless the process is frozen
// and thawed again.
type handlers struct {
	name, hang string
	thawed     <-chan os.Signal
}

func (h handlers) ChargeCard(ctx context.Context, job *jobs.Job[billing.ChargeCard]) (billing.Receipt, error) {
	if job.Payload.OrderID == h.hang {
		fmt.Println("charging") // the parent reads this, and kills or freezes
		<-h.thawed
	}
	return billing.Receipt{Number: "R-" + job.Payload.OrderID, Worker: h.name}, nil
}

func (h handlers) BookPayment(ctx context.Context, tx pgx.Tx, job *jobs.Job[billing.BookPayment]) error {
	_, err := tx.Exec(ctx, "INSERT INTO ledger (payment, cents) VALUES ($1, $2)", job.Payload.PaymentID, job.Payload.Cents)
	return err
}

func (h handlers) Decline(ctx context.Context, job *jobs.Job[billing.Decline]) (billing.Receipt, error) {
	return billing.Receipt{}, errors.New("declined: " + job.Payload.Reason)
}

func main() {
	log.SetFlags(0)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	defer pool.Close()
	if len(os.Args) > 1 {
		thawed := make(chan os.Signal, 1)
		signal.Notify(thawed, syscall.SIGCONT)
		check(work(ctx, pool, handlers{name: "child", hang: os.Args[1], thawed: thawed}))
		return
	}
	check(story(ctx, pool))
}

func work(ctx context.Context, pool *pgxpool.Pool, h handlers) error {
	var reg worker.Registry
	billing.Register(&reg, h)
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	w, err := worker.New(pool, &reg, worker.Config{Lease: time.Second, Reclaim: 100 * time.Millisecond, Logger: quiet})
	if err != nil {
		return err
	}
	return w.RunUntilSignal(ctx)
}

func story(ctx context.Context, pool *pgxpool.Pool) error {
	check(jobs.Migrate(ctx, pool))
	_, err := pool.Exec(ctx, "CREATE TABLE ledger (payment text, cents bigint)")
	check(err)

	// A rollback takes the job along; a commit brings both.
	var booked jobs.Ref[jobs.None]
	for _, end := range []func(pgx.Tx) error{rollback(ctx), commit(ctx)} {
		tx, err := pool.Begin(ctx)
		check(err)
		_, err = tx.Exec(ctx, "INSERT INTO ledger VALUES ('order', 1)")
		check(err)
		booked, err = billing.EnqueueBookPayment(ctx, tx, billing.BookPayment{PaymentID: "p1", Cents: 5})
		check(err)
		check(end(tx))
	}
	expect(1, count(ctx, pool, "SELECT count(*) FROM jobgen.jobs"), "jobs after a rollback and a commit")
	fmt.Println("a rollback takes the job along, a commit brings it")

	// A worker in another process freezes while it works; one here takes the job over; the other wakes and is refused.
	ref, err := billing.EnqueueChargeCard(ctx, pool, billing.ChargeCard{OrderID: "frozen", Cents: 1})
	check(err)
	child := startChild(ctx, "frozen")
	check(child.Process.Signal(syscall.SIGSTOP))
	stop := startWorker(ctx, pool)
	receipt, err := ref.Await(ctx, pool)
	check(err)
	expect(billing.Receipt{Number: "R-frozen", Worker: "parent"}, receipt, "result of the job of the frozen worker")
	stop()
	check(child.Process.Signal(syscall.SIGCONT))
	check(child.Process.Signal(syscall.SIGTERM))
	check(child.Wait())
	receipt, err = billing.ChargeCardRef(ref.ID).Await(ctx, pool)
	check(err)
	expect("parent", receipt.Worker, "result after the frozen worker has finished too")
	fmt.Println("a stale completion is refused")

	// A worker in another process is killed while it works.
	ref, err = billing.EnqueueChargeCard(ctx, pool, billing.ChargeCard{OrderID: "killed"})
	check(err)
	child = startChild(ctx, "killed")
	check(child.Process.Kill())
	stop = startWorker(ctx, pool)
	receipt, err = ref.Await(ctx, pool)
	check(err)
	expect("parent", receipt.Worker, "who finished the job of the killed worker")
	fmt.Println("a killed worker's job is taken back and runs again")

	// A key works once, and remembers its result.
	again, err := billing.EnqueueChargeCard(ctx, pool, billing.ChargeCard{OrderID: "killed", Cents: 99})
	check(err)
	expect(true, again.Existing, "Existing of a duplicate")
	receipt2, err := again.Await(ctx, pool)
	check(err)
	expect(receipt, receipt2, "result of a duplicate")
	fmt.Println("a duplicate key gives the recorded result")

	// Out of attempts: dead, with the reason.
	bad, err := billing.EnqueueDecline(ctx, pool, billing.Decline{Reason: "no funds"})
	check(err)
	_, err = bad.Await(ctx, pool)
	var dead *jobs.DeadError
	expect(true, errors.As(err, &dead), "a dead job's error is a *DeadError")
	expect("2 declined: no funds", fmt.Sprint(dead.Attempts, " ", dead.LastError), "why it is dead")
	fmt.Println("a job that fails to the end is dead, with its reason")

	// Many at once, each awaited.
	var payments []billing.BookPayment
	for i := range 100 {
		payments = append(payments, billing.BookPayment{PaymentID: fmt.Sprint("many", i%50), Cents: int64(i)})
	}
	refs, err := billing.EnqueueBookPaymentMany(ctx, pool, payments)
	check(err)
	for _, r := range refs {
		_, err := r.Await(ctx, pool)
		check(err)
	}
	_, err = booked.Await(ctx, pool) // a worker that was killed may have held it
	check(err)
	expect(50, count(ctx, pool, "SELECT count(*) FROM ledger WHERE payment LIKE 'many%'"), "effects of 100 payments with 50 keys")
	expect(1, count(ctx, pool, "SELECT count(*) FROM ledger WHERE payment = 'p1'"), "effects of the payment enqueued first")
	fmt.Println("a transactional handler's effect happens once")

	stop()
	expect(0, count(ctx, pool, "SELECT count(*) FROM jobgen.jobs WHERE status <> 'dead'"), "jobs left")
	expect(0, count(ctx, pool, "SELECT count(*) FROM jobgen.workers WHERE lost_at IS NULL"), "workers left")
	fmt.Println("nothing is left behind")
	return nil
}

// startChild starts this program as a worker that hangs on one order, and waits until it does.
func startChild(ctx context.Context, hang string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], hang)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	check(err)
	check(cmd.Start())
	var line string
	_, err = fmt.Fscanln(out, &line)
	check(err)
	return cmd
}

// startWorker works in this process until stop is called.
func startWorker(ctx context.Context, pool *pgxpool.Pool) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- work(ctx, pool, handlers{name: "parent"}) }()
	return func() {
		cancel()
		check(<-ended)
	}
}

func rollback(ctx context.Context) func(pgx.Tx) error {
	return func(tx pgx.Tx) error { return tx.Rollback(ctx) }
}

func commit(ctx context.Context) func(pgx.Tx) error {
	return func(tx pgx.Tx) error { return tx.Commit(ctx) }
}

func count(ctx context.Context, pool *pgxpool.Pool, sql string) (n int) {
	check(pool.QueryRow(ctx, sql).Scan(&n))
	return n
}

func expect[T comparable](want, got T, what string) {
	if want != got {
		log.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func check(err error) {
	if err != nil {
		log.Output(2, fmt.Sprintf("app: %v", err))
		log.Fatal("app: stopped")
	}
}
