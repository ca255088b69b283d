// Package orders is the part of the shop that takes orders and writes invoices.
package orders

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
)

//go:generate go run github.com/jobgen-go/jobgen/cmd/jobgen .

// Invoice writes the invoice of an order. However often the order comes in, the key lets it run once.
//
//job:kind orders.invoice queue=orders attempts=10 timeout=30s result=Receipt tx
//job:key OrderID for=24h
type Invoice struct {
	OrderID  string `json:"order_id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

// Receipt is what writing an invoice gives.
type Receipt struct {
	Number int64 `json:"number"`
}

//go:embed schema.sql
var schema string

// CreateTables makes the shop's own tables.
func CreateTables(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, schema); err != nil {
		return fmt.Errorf("create the shop's tables: %w", err)
	}
	return nil
}

// Place stores the order and enqueues its invoice in one transaction: there is never one without the other. An order
// that has been placed before changes nothing; the Ref, Existing then, leads to the receipt of the first.
func Place(ctx context.Context, pool *pgxpool.Pool, o Order, opts ...jobs.Option) (ref jobs.Ref[Receipt], err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO shop.orders (id, customer, cents) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING`,
			o.ID, o.Customer, o.Cents)
		if err != nil {
			return err
		}
		ref, err = EnqueueInvoice(ctx, tx, Invoice{OrderID: o.ID, Customer: o.Customer, Cents: o.Cents}, opts...)
		return err
	})
	if err != nil {
		return ref, fmt.Errorf("place order %q: %w", o.ID, err)
	}
	return ref, nil
}

// Clerk handles the jobs of this package.
type Clerk struct {
	// Started is told of each handler that starts.
	Started func(jobs.Info)
	// Work is what there is to an invoice beyond its row.
	Work func(context.Context) error
}

// Invoice writes the row in the transaction that also completes the job. It writes first and works then, so that a
// worker killed at any moment of it has written something that has to be undone.
func (c *Clerk) Invoice(ctx context.Context, tx pgx.Tx, job *jobs.Job[Invoice]) (Receipt, error) {
	c.Started(job.Info)
	receipt, err := Write(ctx, tx, job)
	if err != nil {
		return Receipt{}, err
	}
	return receipt, c.Work(ctx)
}

// Write inserts the invoice row. The table has no unique constraint on the order: that there is one invoice each is
// left to jobgen alone.
func Write(ctx context.Context, db jobs.DB, job *jobs.Job[Invoice]) (Receipt, error) {
	var r Receipt
	err := db.QueryRow(ctx, `INSERT INTO shop.invoices (order_id, customer, cents) VALUES ($1, $2, $3) RETURNING number`,
		job.Payload.OrderID, job.Payload.Customer, job.Payload.Cents).Scan(&r.Number)
	if err != nil {
		return Receipt{}, fmt.Errorf("write the invoice of order %q: %w", job.Payload.OrderID, err)
	}
	return r, nil
}
