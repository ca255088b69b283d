package orders

import (
	"bufio"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

//go:generate go run ./generate -o orders.csv

// File is the orders file that comes with the shop; generate/main.go tells what is in it and why.
//
//go:embed orders.csv
var File string

// Order is one order as it comes in.
type Order struct {
	ID       string
	Customer string
	Cents    int64
	Line     int // of the file, from 1
}

// Refused is a line that is not an order.
type Refused struct {
	Line   int
	Reason string
}

func (r Refused) Error() string { return fmt.Sprintf("line %d: %s", r.Line, r.Reason) }

const (
	header  = "order_id,customer,cents"
	maxLine = 64 << 10 // bytes
	maxID   = 64       // bytes
	maxName = 200      // bytes
)

// Read reads a file of orders, one a line: order_id,customer,cents, quoted as in CSV. A first line of just these names
// and blank lines are skipped. What is not an order comes back as Refused, with its line and the reason; err is only for
// a file that cannot be read.
func Read(r io.Reader) (orders []Order, refused []Refused, err error) {
	in := bufio.NewReaderSize(r, maxLine)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		long := false
		for errors.Is(err, bufio.ErrBufferFull) {
			long = true
			_, err = in.ReadSlice('\n')
		}
		if err != nil && err != io.EOF {
			return orders, refused, fmt.Errorf("read orders, line %d: %w", n, err)
		}
		text := strings.TrimRight(string(line), "\r\n")
		if n == 1 {
			text = strings.TrimPrefix(text, "\ufeff")
		}
		switch {
		case long:
			refused = append(refused, Refused{n, fmt.Sprintf("longer than %d bytes", maxLine)})
		case text == "" || n == 1 && text == header:
		default:
			o, problem := parse(text)
			if o.Line = n; problem != nil {
				refused = append(refused, Refused{n, problem.Error()})
			} else {
				orders = append(orders, o)
			}
		}
		if err == io.EOF {
			return orders, refused, nil
		}
	}
}

func parse(line string) (Order, error) {
	// What Postgres cannot store as text is refused here, where the line is known.
	if !utf8.ValidString(line) {
		return Order{}, errors.New("not valid UTF-8")
	}
	if at := strings.IndexByte(line, 0); at >= 0 {
		return Order{}, fmt.Errorf("a NUL character at byte %d", at+1)
	}
	record := csv.NewReader(strings.NewReader(line))
	record.FieldsPerRecord = -1
	fields, err := record.Read()
	var syntax *csv.ParseError
	switch {
	case errors.As(err, &syntax):
		return Order{}, syntax.Err
	case err != nil:
		return Order{}, err
	case len(fields) != 3:
		return Order{}, fmt.Errorf("%d fields instead of 3 (%s)", len(fields), header)
	}
	o := Order{ID: fields[0], Customer: fields[1]}
	switch {
	case o.ID == "":
		return o, errors.New("no order id")
	case len(o.ID) > maxID:
		return o, fmt.Errorf("an order id of %d bytes; the limit is %d", len(o.ID), maxID)
	case o.Customer == "":
		return o, errors.New("no customer")
	case len(o.Customer) > maxName:
		return o, fmt.Errorf("a customer's name of %d bytes; the limit is %d", len(o.Customer), maxName)
	}
	o.Cents, err = strconv.ParseInt(fields[2], 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return o, fmt.Errorf("amount %.30q is out of range", fields[2])
	case err != nil:
		return o, fmt.Errorf("amount %.30q is not a whole number of cents", fields[2])
	case o.Cents < 0:
		return o, fmt.Errorf("amount %d is negative", o.Cents)
	}
	return o, nil
}
