package postgres_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
)

const published = `SELECT format('%s %s %s slots %s, running %s, stuck %s, pooled %s', kinds, versions, timeouts_us, slots, running, coalesce(stuck::text, 'null'), pooled)
	FROM jobgen.workers WHERE id = $1`

// What operators ask of a worker stands in its row: what it is from the start, how busy it is with each heartbeat.
func TestAWorkersRowTellsWhatItIsLike(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := engine.Worker{
		ID: uuid.New(), Host: "host", Build: "test", Queues: []string{"q"}, Slots: 7,
		Kinds: []engine.Kind{{Name: "a", Version: 3, Timeout: time.Minute}, {Name: "b", Version: 1}},
		Locks: []engine.Kind{{Name: "c", Version: 2, Timeout: time.Second}},
	}
	if err := f.store.Register(f.ctx(), w, time.Hour); err != nil {
		t.Fatal(err)
	}
	f.expect("{a,b,c} {3,1,2} {60000000,0,1000000} slots 7, running 0, stuck null, pooled f", published, w.ID)
	for _, c := range []struct {
		load engine.Load
		want string
	}{
		{engine.Load{Slots: 9, Running: 5, Stuck: 2}, "slots 9, running 5, stuck 2"},
		{engine.Load{Slots: 9, Running: 1}, "slots 9, running 1, stuck null"},
	} {
		if beat, err := f.store.Heartbeat(f.ctx(), w.ID, time.Hour, c.load, nil); err != nil || !beat.Renewed {
			t.Fatal(beat, err)
		}
		f.expect("{a,b,c} {3,1,2} {60000000,0,1000000} "+c.want+", pooled f", published, w.ID)
	}
}

// How wrong a machine's clock is, stands in its worker's row: half of the round trip is not counted as error.
func TestAWorkersRowTellsHowWrongItsClockIs(t *testing.T) {
	t.Parallel()
	f := open(t)
	var ahead, trip atomic.Int64
	begin, readings := time.Now(), 0
	f.store.SetClock(func() time.Time { // every second reading is at the end of a round trip
		readings++
		return begin.Add(time.Since(begin) + time.Duration(ahead.Load()) + time.Duration(trip.Load()*int64((readings+1)%2)))
	})
	skew := func() time.Duration {
		return time.Duration(value[int64](t, f.pool, `SELECT skew_us FROM jobgen.workers`)) * time.Microsecond
	}
	near := func(want time.Duration) {
		t.Helper()
		if got := skew(); (got - want).Abs() > 5*time.Second {
			t.Errorf("the skew is %s, want about %s", got, want)
		}
	}
	ahead.Store(int64(-time.Hour))
	me := f.worker(time.Hour)
	near(-time.Hour)
	beat := func() {
		t.Helper()
		for range 2 { // what one has measured, the next one stores
			if _, err := f.store.Heartbeat(f.ctx(), me.ID, time.Hour, engine.Load{}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	ahead.Store(int64(time.Minute))
	beat()
	near(time.Minute)
	ahead.Store(0)
	trip.Store(int64(time.Minute))
	beat()
	near(time.Minute) // as it was: a slow answer tells nothing

	other := f.openStore()
	other.SetClock(func() time.Time {
		readings++
		return time.Now().Add(time.Duration((readings % 2)) * time.Minute)
	})
	readings = 1 // so the answer comes a minute after the question
	f.exec(`DELETE FROM jobgen.workers`)
	f.store = other
	f.worker(time.Hour)
	near(30 * time.Second)
}
