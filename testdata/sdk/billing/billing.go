//go:build ignore

// Package billing is what a user writes: annotated structs.
//
//job:defaults queue=billing timeout=30s
package billing

//go:generate go tool jobgen .

// ChargeCard charges a customer's saved card.
//
//job:kind billing.charge_card result=Receipt
//job:key OrderID for=24h
type ChargeCard struct {
	OrderID string `json:"order_id"`
	Cents   int64  `json:"cents"`
}

// Receipt is what charging gives.
type Receipt struct {
	Number string `json:"number"`
	Worker string `json:"worker"`
}

// BookPayment writes a payment to the ledger, once.
//
//job:kind billing.book_payment tx
//job:key PaymentID for=30d
type BookPayment struct {
	PaymentID string `json:"payment_id"`
	Cents     int64  `json:"cents"`
}

// Decline always fails.
//
//job:kind billing.decline attempts=2 result=Receipt
//job:retry backoff=const base=1ms
type Decline struct {
	Reason string `json:"reason"`
}
