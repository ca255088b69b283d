package engine

import "time"

// Level is what there is of a kind in a queue.
type Level struct {
	Queue, Kind string
	Ready       int64 // waits, and could run now; a job that is owned by lock is among these while it runs
	Scheduled   int64 // waits for its time
	Running     int64 // held by lease
	Dead        int64
	Oldest      time.Duration // how long the oldest ready job has waited; 0: none is ready
}

// Look is a look at all levels.
type Look struct {
	At       time.Time
	NewestID int64   // the last id that had been drawn
	Share    float64 // the part of the table that was counted; 1: all of it, so the levels are exact; less: estimates
	Levels   []Level // by queue and kind, of all that have any
}

// Sample is what happened to a kind in a queue in one minute.
type Sample struct {
	Minute      time.Time // its beginning; zero: since ever
	Queue, Kind string
	Arrived     int64 // enqueued or requeued
	Succeeded   int64
	Failed      int64 // attempts, the last of a job included
	TimedOut    int64 // of Failed: ended by the kind's timeout
	Snoozed     int64 // attempts
	Cancelled   int64
	Died        int64
	Reclaimed   int64         // attempts that ended because their worker was lost
	RunTime     time.Duration // of all attempts that ended
	// RunTimes counts them by how long they ran: [0] those of less than 1 ms, [i] those of less than 2^i ms but not less than half of
	// that; the last of RunTimeBuckets also all that took longer.
	RunTimes []int64
	Level    *Level // at the beginning of the minute; nil: nobody looked, or saw none
}

// RunTimeBuckets is the greatest length of Sample.RunTimes: the last bucket begins at 37 hours.
const RunTimeBuckets = 29

// Add adds what o counts to s.
func (s *Sample) Add(o *Sample) {
	s.Arrived += o.Arrived
	s.Succeeded += o.Succeeded
	s.Failed += o.Failed
	s.TimedOut += o.TimedOut
	s.Snoozed += o.Snoozed
	s.Cancelled += o.Cancelled
	s.Died += o.Died
	s.Reclaimed += o.Reclaimed
	s.RunTime += o.RunTime
	if n := len(o.RunTimes) - len(s.RunTimes); n > 0 {
		s.RunTimes = append(s.RunTimes, make([]int64, n)...)
	}
	for i, n := range o.RunTimes {
		s.RunTimes[i] += n
	}
}

// Horizon is how far ids had come at the last looks. A job whose id is greater than Since and that leaves jobs has arrived and left
// unseen by any look, which counts only ids up to Since: so whoever ends it counts its arrival. From the next minute on that is Next.
type Horizon struct {
	Since, Next int64
	Known       bool // Since is: there has been a look before
}
