package main

import (
	"math"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		want   spread
	}{
		{"one", []float64{3}, spread{3, 3, 3}},
		{"odd, unsorted", []float64{5, 1, 3}, spread{3, 1, 5}},
		{"even: the mean of the middle two", []float64{4, 1, 2, 10}, spread{3, 1, 10}},
		{"an outlier does not move the median", []float64{1, 1, 1, 1, 1000}, spread{1, 1, 1000}},
	} {
		if got := spreadOf(c.values); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	for _, values := range [][]float64{nil, {1, math.NaN(), 2}, {1, math.Inf(1)}, {math.Inf(-1)}} {
		if spreadOf(values).known() {
			t.Errorf("%v: a median of what is not known", values)
		}
	}
}

func TestSpreadLeavesItsArgumentInOrder(t *testing.T) {
	values := []float64{3, 1, 2}
	spreadOf(values)
	if values[0] != 3 {
		t.Errorf("values are %v now", values)
	}
}

// Rates of 10, 20 and 60 against 10, 10 and 20: the ratio of medians would be 2 as well, but the spread would be wrong, and
// with one slow round for both the ratio of medians moves while the median of ratios does not.
func TestRatioIsTakenWithinARound(t *testing.T) {
	us, them := term{"c", "us"}, term{"c", "them"}
	s := samples{}
	for _, seconds := range []float64{1, 10, 5} {
		s[us] = append(s[us], sample{jobs: 100, seconds: seconds})
		s[them] = append(s[them], sample{jobs: 100, seconds: 2 * seconds})
	}
	if got := s.ratio(ratio{metric: rate, ours: []term{us}, other: []term{them}}); got != (spread{2, 2, 2}) {
		t.Errorf("twice as fast in each round: %v", got)
	}
}

func TestRatioAddsItsTerms(t *testing.T) {
	s := samples{
		{"enqueue", "us"}: {{jobs: 10, wal: 1000}}, {"drain", "us"}: {{jobs: 10, wal: 2000}},
		{"enqueue", "them"}: {{jobs: 10, wal: 4000}}, {"drain", "them"}: {{jobs: 10, wal: 2000}},
	}
	r := ratio{metric: wal, ours: []term{{"enqueue", "us"}, {"drain", "us"}}, other: []term{{"enqueue", "them"}, {"drain", "them"}}}
	if got := s.ratio(r); got.Median != 0.5 {
		t.Errorf("(100 + 200) / (400 + 200): %v", got)
	}
}

func TestRatioOfTheWorst(t *testing.T) {
	s := samples{
		{"c", "one"}: {{jobs: 10, seconds: 1}}, {"c", "two"}: {{jobs: 8, seconds: 1}}, {"c", "four"}: {{jobs: 30, seconds: 1}},
	}
	r := ratio{metric: rate, worst: true, ours: []term{{"c", "two"}, {"c", "four"}}, other: []term{{"c", "one"}}}
	if got := s.ratio(r); got.Median != 0.8 {
		t.Errorf("the smaller of 8 and 30, over 10: %v", got)
	}
}

func TestRatioWithoutAnotherIsTheFigure(t *testing.T) {
	s := samples{{"c", "us"}: {{first: 10, last: 9}}}
	if got := s.ratio(ratio{metric: hold, ours: []term{{"c", "us"}}}); got.Median != 0.9 {
		t.Errorf("9 over 10: %v", got)
	}
}

func TestRatioOfWhatDidNotRunIsUnknown(t *testing.T) {
	us, them := term{"c", "us"}, term{"c", "them"}
	s := samples{us: {{jobs: 1, seconds: 1}}}
	if got := s.ratio(ratio{metric: rate, ours: []term{us}, other: []term{them}}); got.known() {
		t.Errorf("a ratio without the other: %v", got)
	}
}

func TestRatiosNameContestsAndEntrants(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range ratios {
		if seen[r.key] {
			t.Errorf("%s: twice", r.key)
		}
		seen[r.key] = true
		for _, terms := range [][]term{r.ours, r.other} {
			for _, one := range terms {
				if _, _, ok := find(one.contest, one.entrant); !ok {
					t.Errorf("%s: there is no %s in %s", r.key, one.entrant, one.contest)
				}
			}
		}
	}
}
