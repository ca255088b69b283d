package orders

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadTellsWhatIsWrongWithEachLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, reason string }{
		{"R-1,Anna", "2 fields instead of 3"},
		{"R-1,Anna,1,2", "4 fields instead of 3"},
		{"R-1", "1 fields instead of 3"},
		{",Anna,1", "no order id"},
		{"R-1,,1", "no customer"},
		{"R-1,Anna,", `amount "" is not a whole number`},
		{"R-1,Anna,12.50", `amount "12.50" is not a whole number`},
		{"R-1,Anna,1e3", "not a whole number"},
		{"R-1,Anna, 1", "not a whole number"},
		{"R-1,Anna,١٢", "not a whole number"},
		{"R-1,Anna,-1", "amount -1 is negative"},
		{"R-1,Anna,-9223372036854775808", "negative"},
		{"R-1,Anna,9223372036854775808", "out of range"},
		{"R-1,Anna,-9223372036854775809", "out of range"},
		{"R-1,An\xffna,1", "not valid UTF-8"},
		{"R-1,An\xed\xa0\x80na,1", "not valid UTF-8"}, // half of a surrogate pair
		{"R-1,An\x00na,1", "NUL character at byte 7"},
		{`R-1,"Anna,1`, "quote"},
		{`R-1,An"na,1`, `"`},
		{strings.Repeat("x", 65) + ",Anna,1", "order id of 65 bytes"},
		{"R-1," + strings.Repeat("ж", 101) + ",1", "name of 202 bytes"},
		{"R-1," + strings.Repeat("x", 200_000) + ",1", "longer than"},
	} {
		file := "order_id,customer,cents\nok-1,Anna,1\n" + c.line + "\nok-2,Anna,2\n"
		orders, refused, err := Read(strings.NewReader(file))
		switch {
		case err != nil:
			t.Errorf("%.40q: %v", c.line, err)
		case len(orders) != 2 || orders[1].ID != "ok-2" || orders[1].Line != 4:
			t.Errorf("%.40q: the lines beside it were not read: %v", c.line, orders)
		case len(refused) != 1 || refused[0].Line != 3 || !strings.Contains(refused[0].Reason, c.reason):
			t.Errorf("%.40q: %v, want %q", c.line, refused, c.reason)
		case strings.ContainsAny(refused[0].Reason, "\n\r\x00") || len(refused[0].Reason) > 100:
			t.Errorf("%.40q: the reason does not fit on a line: %q", c.line, refused[0].Reason)
		}
	}
}

func TestReadTakesWhatIsOddButRight(t *testing.T) {
	t.Parallel()
	for _, want := range []Order{
		{ID: "0", Customer: "0", Cents: 0},
		{ID: "R-1", Customer: "Max", Cents: 9223372036854775807},
		{ID: "a ", Customer: " ", Cents: 1},
		{ID: "注文", Customer: "山田 太郎 👩‍👩‍👧‍👦", Cents: 1},
		{ID: "e\u0301", Customer: "\u202eover\u202c", Cents: 1},
		{ID: "'; DROP TABLE x; --", Customer: "a\\b%s", Cents: 1},
		{ID: strings.Repeat("x", 64), Customer: strings.Repeat("x", 200), Cents: 1},
	} {
		for _, end := range []string{"", "\n", "\r\n", "\n\n"} {
			want.Line = 1
			orders, refused, err := Read(strings.NewReader(fmt.Sprintf("%s,%s,%d%s", want.ID, want.Customer, want.Cents, end)))
			if err != nil || len(refused) > 0 || len(orders) != 1 || orders[0] != want {
				t.Errorf("%+v, end %q: %+v, %v, %v", want, end, orders, refused, err)
			}
		}
	}
	orders, _, _ := Read(strings.NewReader("\ufefforder_id,customer,cents\r\n\"a,\"\"b\",\"x, y\",5\r\n"))
	if want := (Order{ID: `a,"b`, Customer: "x, y", Cents: 5, Line: 2}); len(orders) != 1 || orders[0] != want {
		t.Errorf("%+v, want %+v", orders, want)
	}
}

func TestReadOfNothingIsNothing(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"", "\n", "\ufeff", "order_id,customer,cents", "order_id,customer,cents\n\n\n"} {
		if orders, refused, err := Read(strings.NewReader(file)); len(orders)+len(refused) != 0 || err != nil {
			t.Errorf("%q: %v, %v, %v", file, orders, refused, err)
		}
	}
}

func TestReadSaysWhereAFileBroke(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk on fire")
	_, _, err := Read(iotest.DataErrReader(iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("err = %v", err)
	}
}

func TestTheFileThatComesWithTheShopHasWhatTheDemoNeeds(t *testing.T) {
	t.Parallel()
	orders, refused, err := Read(strings.NewReader(File))
	if err != nil {
		t.Fatal(err)
	}
	distinct := map[string]Order{}
	zero, huge := 0, 0
	for _, o := range orders {
		if before, again := distinct[o.ID]; again {
			if o.Line = before.Line; o != before {
				t.Errorf("order %q comes twice and differs", o.ID)
			}
			continue
		}
		distinct[o.ID] = o
		if o.Cents == 0 {
			zero++
		}
		if o.Cents > 1<<53 {
			huge++
		}
	}
	if len(orders) != 1993 || len(distinct) != 1933 || len(refused) != 7 {
		t.Errorf("%d orders, %d distinct, %d refused", len(orders), len(distinct), len(refused))
	}
	if zero < 10 || huge < 10 {
		t.Errorf("%d amounts of zero, %d that a float would round", zero, huge)
	}
	for script, letter := range map[string]string{
		"Cyrillic": "П", "Greek": "Ε", "Arabic": "ل", "Hebrew": "נ", "Chinese": "王", "Japanese": "さ", "Korean": "김", "Devanagari": "श", "Thai": "ส", "emoji": "🦄",
	} {
		if !strings.Contains(File, letter) {
			t.Errorf("no %s names", script)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("a,b,1\n")
	f.Add("\"\n\r\n\x00,\xff")
	f.Fuzz(func(t *testing.T, file string) {
		orders, refused, err := Read(strings.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(file, "\n") + 1; len(orders)+len(refused) > n {
			t.Errorf("%d lines gave %d orders and %d refusals", n, len(orders), len(refused))
		}
	})
}
