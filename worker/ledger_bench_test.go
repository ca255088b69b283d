package worker

import (
	"context"
	"testing"

	"github.com/google/uuid"
)

// BenchmarkLedger is what the ledger costs a job that nothing restricts: it is entered in a batch, started, returns, and
// is settled.
func BenchmarkLedger(b *testing.B) {
	me := uuid.New()
	l := newLedger(100)
	l.own(me, nil)
	batch := held(me, 1, 100)
	b.ReportAllocs()
	for b.Loop() {
		l.add(me, batch)
		for range batch {
			h := l.start(context.Background(), nil)
			l.returned(h)
			l.free(h)
		}
		for l.start(context.Background(), nil) != nil {
		}
		l.settle(batch...)
	}
}
