package jobs_test

import (
	"testing"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

// BenchmarkEnqueue is what an enqueue costs its caller: allocations are the figure, since the time is the database's. Many is
// for each of a thousand jobs.
func BenchmarkEnqueue(b *testing.B) {
	type payload struct {
		N  int
		To string
	}
	plain := &jobs.Spec[payload, jobs.None]{Kind: "b.plain", Queue: "q"}
	keyed := &jobs.Spec[payload, jobs.None]{Kind: "b.keyed", Queue: "q", Key: func(k *jobs.KeyBuilder, p payload) { k.Int(int64(p.N)) }}
	for _, s := range []*jobs.Spec[payload, jobs.None]{plain, keyed} {
		b.Run(s.Kind[2:], func(b *testing.B) {
			pool := jobtest.DB(b)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				if _, err := jobs.Enqueue(b.Context(), pool, s, payload{N: n, To: "a@example.com"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("many", func(b *testing.B) {
		pool := jobtest.DB(b)
		ps := make([]payload, b.N)
		for i := range ps {
			ps[i] = payload{N: i, To: "a@example.com"}
		}
		b.ReportAllocs()
		b.ResetTimer()
		for len(ps) > 0 {
			n := min(len(ps), 1000)
			if _, err := jobs.EnqueueMany(b.Context(), pool, plain, ps[:n]); err != nil {
				b.Fatal(err)
			}
			ps = ps[n:]
		}
	})
}
