package main

import (
	"math"
	"slices"
)

// sample is what one entrant did in one round. A figure that the system does not give is NaN.
type sample struct {
	jobs    int
	seconds float64
	client  float64 // CPU seconds of the entrant's process, user and system
	server  float64 // CPU seconds of the server and all its processes
	wal     float64 // bytes, those of full-page images included
	commits float64
	dead    float64 // row versions left dead: updated, deleted
	memory  float64 // bytes: the largest resident set of the entrant's process
	p50     float64 // seconds from a job's commit to its start
	p99     float64
	first   float64 // jobs per second at the beginning, and at the end
	last    float64
	queries float64 // statements that the entrant has sent
	backlog float64 // the largest number of jobs that waited
	claim50 float64 // seconds that claims took in the worst stretch of time
	claim99 float64
	series  map[string]series
	vacuum  float64 // CPU seconds of autovacuum
	ran     ran
	parts   map[string]float64 // CPU seconds by component
	curve   []float64          // seconds from commit to start: quantiles at equal distances, the smallest and the largest included
}

// series is a figure over time: one value for each stretch of so many seconds, from the start. It has a name that tells the
// unit, such as jobs_per_s.
type series struct {
	Every  float64   `json:"every_s"`
	Values []float64 `json:"values"`
}

// metric is a figure made of a sample.
type metric struct {
	key    string
	label  string
	higher bool // is better
	of     func(sample) float64
}

var (
	rate    = metric{"jobs_per_s", "jobs/s", true, func(s sample) float64 { return float64(s.jobs) / s.seconds }}
	client  = metric{"client_cpu_us_per_job", "client CPU µs/job", false, func(s sample) float64 { return s.client * 1e6 / float64(s.jobs) }}
	server  = metric{"server_cpu_us_per_job", "server CPU µs/job", false, func(s sample) float64 { return s.server * 1e6 / float64(s.jobs) }}
	cpu     = metric{"cpu_us_per_job", "CPU µs/job", false, func(s sample) float64 { return client.of(s) + server.of(s) }}
	wal     = metric{"wal_bytes_per_job", "WAL B/job", false, func(s sample) float64 { return s.wal / float64(s.jobs) }}
	commits = metric{"commits_per_1000_jobs", "commits/1000 jobs", false, func(s sample) float64 { return s.commits * 1000 / float64(s.jobs) }}
	dead    = metric{"dead_rows_per_job", "dead rows/job", false, func(s sample) float64 { return s.dead / float64(s.jobs) }}
	p50     = metric{"latency_p50_ms", "ms p50", false, func(s sample) float64 { return s.p50 * 1e3 }}
	p99     = metric{"latency_p99_ms", "ms p99", false, func(s sample) float64 { return s.p99 * 1e3 }}
	first   = metric{"first_jobs_per_s", "jobs/s, first", true, func(s sample) float64 { return s.first }}
	last    = metric{"last_jobs_per_s", "jobs/s, last", true, func(s sample) float64 { return s.last }}
	hold    = metric{"last_over_first", "last/first", true, func(s sample) float64 { return s.last / s.first }}
	memory  = metric{"client_memory_mb", "client MB", false, func(s sample) float64 { return s.memory / (1 << 20) }}
)

var (
	backlogWorst = metric{"worst_backlog", "backlog", false, func(s sample) float64 { return s.backlog }}
	claim50      = metric{"claim_p50_ms", "claim ms p50", false, func(s sample) float64 { return s.claim50 * 1e3 }}
	claim99      = metric{"claim_p99_ms", "claim ms p99", false, func(s sample) float64 { return s.claim99 * 1e3 }}
)

// of idle workers, each of which is a job
var (
	statements = metric{"statements_per_worker_s", "statements/s each", false, func(s sample) float64 { return s.queries / float64(s.jobs) / s.seconds }}
	busy       = metric{"server_core_percent", "server, % core", false, func(s sample) float64 { return 100 * s.server / s.seconds }}
	clientBusy = metric{"client_core_percent", "client, % core", false, func(s sample) float64 { return 100 * s.client / s.seconds }}
)

var metrics = []metric{rate, client, server, cpu, wal, commits, dead, memory}

// recorded is all that results.json holds of a contest, if it is known
var recorded = slices.Concat(
	metrics,
	[]metric{p50, p99, first, last, hold, statements, busy, clientBusy},
	[]metric{backlogWorst, claim50, claim99},
	partMetrics(),
	[]metric{hotSize, pkeySize, claimIndexSize, claimsSize, historySize, hotShare, vacuumTime, claimEarly, claimLate},
)

// spread is a median with the smallest and the largest value beside it.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spreadOf gives NaN throughout if there are no values or one of them is none: NaN, or something over nothing. Of an even number of
// values the median is the mean of the middle two.
func spreadOf(values []float64) spread {
	if len(values) == 0 || slices.ContainsFunc(values, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }) {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1]}
}

func (s spread) known() bool { return !math.IsNaN(s.Median) }

// samples are all of a run: by contest and entrant, one for each round.
type samples map[term][]sample

func (s samples) spread(t term, m metric) spread {
	values := make([]float64, len(s[t]))
	for i, one := range s[t] {
		values[i] = m.of(one)
	}
	return spreadOf(values)
}

// ratio divides within each round and only then takes the median: the mood of the machine is a round's, not a run's. It
// is unknown if one of its entrants did not run.
func (s samples) ratio(r ratio) spread {
	sum := func(terms []term, round int) (total float64) {
		for _, t := range terms {
			total += r.metric.of(s[t][round])
		}
		return total
	}
	ours := sum
	if r.worst {
		ours = func(terms []term, round int) float64 {
			worst := math.Inf(1)
			for _, t := range terms {
				worst = min(worst, r.metric.of(s[t][round]))
			}
			return worst
		}
	}
	rounds := math.MaxInt
	for _, t := range slices.Concat(r.ours, r.other) {
		rounds = min(rounds, len(s[t]))
	}
	values := make([]float64, rounds)
	for i := range values {
		values[i] = ours(r.ours, i)
		if len(r.other) > 0 {
			values[i] /= sum(r.other, i)
		}
	}
	return spreadOf(values)
}

// curve is the distribution of latencies, in ms: the median over the rounds of each quantile. Nil if there is none.
func (s samples) curve(t term) (c []float64) {
	for i := range curvePoints {
		var values []float64
		for _, one := range s[t] {
			if len(one.curve) != curvePoints {
				return nil
			}
			values = append(values, one.curve[i])
		}
		if len(values) == 0 {
			return nil
		}
		c = append(c, rounded(spreadOf(values).Median*1e3))
	}
	return c
}
