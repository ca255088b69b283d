package exporter

import (
	"cmp"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// desc is one metric.
type desc struct {
	Name, Type, Help string
	Labels           []string
	most             bool // of equal label sets the greatest counts; else their sum
}

// sample is one value of a metric, or one histogram.
type sample struct {
	labels  []string
	value   float64   // of a histogram: the sum
	buckets []float64 // of a histogram: how many up to each of bounds, then all
}

// page is what one collection has found.
type page map[*desc]map[string]*sample

// put adds a value. Two sets of labels that come out alike (folded, or mended) are one: Prometheus refuses a page that has
// a series twice.
func (p page) put(d *desc, value float64, labels ...string) { p.sample(d, labels).merge(d, value) }

func (p page) sample(d *desc, labels []string) *sample {
	if p[d] == nil {
		p[d] = map[string]*sample{}
	}
	clean := make([]string, len(labels))
	for i, l := range labels {
		clean[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	key := keyOf(clean)
	if p[d][key] == nil {
		p[d][key] = &sample{labels: clean}
	}
	return p[d][key]
}

// keyOf is a set of labels as one text. No text from a database has a NUL in it.
func keyOf(labels []string) string { return strings.Join(labels, "\x00") }

func (s *sample) merge(d *desc, value float64) {
	if d.most {
		s.value = max(s.value, value)
	} else {
		s.value += value
	}
}

// write writes the page in the text format of Prometheus, version 0.0.4, in an order that stays.
func (p page) write(w io.Writer) error {
	var b []byte
	for _, d := range Metrics {
		if len(p[d]) == 0 {
			continue
		}
		b = append(b, "# HELP "+d.Name+" "+helpText.Replace(d.Help)+"\n# TYPE "+d.Name+" "+d.Type+"\n"...)
		samples := make([]*sample, 0, len(p[d]))
		for _, s := range p[d] {
			samples = append(samples, s)
		}
		slices.SortFunc(samples, func(a, b *sample) int { return slices.Compare(a.labels, b.labels) })
		for _, s := range samples {
			if d.Type != "histogram" {
				b = line(b, d.Name, d.Labels, s.labels, s.value)
				continue
			}
			names := append(slices.Clone(d.Labels), "le")
			for i, n := range s.buckets {
				le := math.Inf(1)
				if i < len(bounds) {
					le = bounds[i]
				}
				b = line(b, d.Name+"_bucket", names, append(slices.Clone(s.labels), number(le)), n)
			}
			b = line(b, d.Name+"_sum", d.Labels, s.labels, s.value)
			b = line(b, d.Name+"_count", d.Labels, s.labels, s.buckets[len(s.buckets)-1])
		}
	}
	_, err := w.Write(b)
	return err
}

func line(b []byte, name string, labels, values []string, value float64) []byte {
	b = append(b, name...)
	for i, l := range labels {
		b = append(b, cmp.Or(map[int]string{0: "{"}[i], ",")...)
		b = append(b, l+`="`+labelText.Replace(values[i])+`"`...)
	}
	if len(labels) > 0 {
		b = append(b, '}')
	}
	return append(b, " "+number(value)+"\n"...)
}

var (
	helpText  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelText = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func number(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
