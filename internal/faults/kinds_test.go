package faults

import (
	"time"

	"github.com/jobgen-go/jobgen/jobs"
)

// work is the payload of all kinds. Trouble decides, together with the attempt, what the handler does, so that a seed decides it.
type work struct {
	N       int64
	Trouble uint64
}

// answer is what a handler that returns a result returns for a payload.
type answer struct{ N int64 }

func answerTo(n int64) answer { return answer{2*n + 1} }

var again = jobs.Backoff{Base: 20 * time.Millisecond, Max: 2 * time.Second}

// The kinds: one for each way in which a job is completed.
var (
	plain  = &jobs.Spec[work, jobs.None]{Kind: "f.plain", Queue: "a", Backoff: again, MaxAttempts: 30}
	result = &jobs.Spec[work, answer]{Kind: "f.result", Queue: "b", Backoff: again, MaxAttempts: 30}
	keyed  = &jobs.Spec[work, answer]{Kind: "f.keyed", Queue: "a", Priority: 3, Backoff: again, MaxAttempts: 30, Key: byTens}
	inTx   = &jobs.Spec[work, jobs.None]{Kind: "f.tx", Queue: "b", Backoff: again, MaxAttempts: 30}
	once   = &jobs.Spec[work, answer]{Kind: "f.once", Queue: "a", Backoff: again, MaxAttempts: 30, Key: byTens}
	locked = &jobs.Spec[work, jobs.None]{Kind: "f.lock", Queue: "l", Backoff: again, MaxAttempts: 30, Timeout: 5 * time.Second, Lock: true}
)

// byTens gives ten jobs in a row one key.
func byTens(k *jobs.KeyBuilder, w work) { k.Int(w.N / 10) }

var (
	queues        = []string{"a", "b", "l"}
	transactional = map[string]bool{inTx.Kind: true, once.Kind: true, locked.Kind: true}
)
