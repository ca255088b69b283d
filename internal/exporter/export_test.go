package exporter

import "io"

// WriteOdd writes a page with one job of each of the kinds.
func WriteOdd(w io.Writer, kinds ...string) error {
	p := page{}
	for _, k := range kinds {
		p.put(unhandled, 1, "q", k)
	}
	return p.write(w)
}
