package worker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

type ChargeCard struct{ OrderID string }

type Receipt struct{ Number string }

type MailReceipt struct{ OrderID, Number string }

var (
	chargeCard  = &jobs.Spec[ChargeCard, Receipt]{Kind: "billing.charge_card", Queue: "billing"}
	mailReceipt = &jobs.Spec[MailReceipt, jobs.None]{Kind: "billing.mail_receipt", Queue: "mail"}
)

func charge(ctx context.Context, job *jobs.Job[ChargeCard]) (Receipt, error) {
	receipt := Receipt{Number: "R-" + job.Payload.OrderID} // call the payment provider here

	mail := MailReceipt{OrderID: job.Payload.OrderID, Number: receipt.Number}
	_, err := jobs.Enqueue(ctx, job.OnSuccess(), mailReceipt, mail, jobs.In(time.Second))
	return receipt, err
}

// The example of docs/runtime/followups.md.
func TestTheExampleOfFollowUps(t *testing.T) {
	t.Parallel()
	pool := database(t)
	mailed := make(chan string, 1)
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, chargeCard, charge)
		worker.HandleNone(r, mailReceipt, func(_ context.Context, job *jobs.Job[MailReceipt]) error {
			mailed <- job.Payload.Number
			return nil
		})
	})
	ref, err := jobs.Enqueue(t.Context(), pool, chargeCard, ChargeCard{OrderID: "o-17"})
	if err != nil {
		t.Fatal(err)
	}
	receipt, err := await(t, pool, ref)
	if got := fmt.Sprint(receipt.Number, ", ", receive(t, "the mail", mailed)); err != nil || got != "R-o-17, R-o-17" {
		t.Errorf("%s, %v", got, err)
	}
}
