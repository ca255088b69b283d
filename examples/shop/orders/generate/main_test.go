package main

import (
	"bytes"
	"os"
	"testing"
)

func TestTheFileInTheRepositoryIsWhatIsGenerated(t *testing.T) {
	t.Parallel()
	there, err := os.ReadFile("../orders.csv")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(there, generate()) {
		t.Error("orders.csv differs from what generate writes; run go generate ./examples/shop/orders")
	}
}
