// Package sqltest shows, and its tests prove, how jobs are enqueued in the transactions of libraries on database/sql. It is
// a module of its own, so that none of those libraries enters the module graph of whoever uses jobgen.
package sqltest

//go:generate go run github.com/jobgen-go/jobgen/cmd/jobgen .

// Welcome sends a new user a mail.
//
//job:kind users.welcome queue=mail attempts=5 timeout=30s result=Sent
//job:key Name for=24h
type Welcome struct {
	Name string `json:"name"`
	Note string `json:"note,omitempty"`
}

// Sent is what sending a mail gives.
type Sent struct {
	To string `json:"to"`
}
