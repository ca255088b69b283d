// Command generate writes orders.csv, the same each time: 2,000 lines after the header, made to be unkind to whoever
// reads, stores and passes them on.
//
//   - names in Latin, Cyrillic, Greek, Arabic, Hebrew, Chinese, Japanese, Korean, Devanagari and Thai letters, with emoji,
//     quotes, commas, combining accents and marks that change the direction of writing
//   - amounts of zero, of one cent, and of 9223372036854775807 cents
//   - order ids that differ only in case, in how an accent is composed, or in a trailing space, and some that look like SQL
//   - 60 lines whose order has come before, right after it or long after
//   - 7 lines that are no orders
package main

import (
	"bytes"
	"encoding/csv"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
)

const (
	lines      = 2000
	duplicates = 60
)

// malformed are the lines that are no orders, by where they stand.
var malformed = map[int]string{
	17:   "R-0017,Niemand",                          // a field is missing
	60:   "R-0060,Minus Müller,-1",                  // a negative amount
	111:  ",Anna Ohnenummer,1999",                   // no id
	402:  "R-0402,Bro\xffken Byte,1200",             // not UTF-8
	873:  "R-0873,Nul\x00l,1200",                    // a character that Postgres cannot store
	1290: "R-1290,Zwölf Fünfzig,12.50",              // not a number of cents
	1777: "R-1777,Max Überlauf,9223372036854775808", // one more than fits
}

// odd are orders with something special about the id or the amount, by where they stand.
var odd = map[int][]string{
	5:    {"a-1", "Ada Lovelace", "0"},
	6:    {"A-1", "Ada Lovelace", "0"},
	7:    {"A-1 ", "Ada Lovelace", "0"},
	12:   {"caf\u00e9-1", "José Ñandú", "9223372036854775807"},
	13:   {"cafe\u0301-1", "Jose\u0301 N\u0303andu\u0301", "9223372036854775807"},
	31:   {"'; DROP TABLE jobgen.jobs; --", "Little Bobby Tables", "1"},
	44:   {"注文-44", "山田太郎", "0"},
	45:   {"заказ-45", "Пётр Чайковский", "9223372036854775806"},
	46:   {"طلب-46", "ليلى العلوي", "4294967296"},
	77:   {"🧾-77", "Zoë 👩‍👩‍👧‍👦 & Söhne", "2147483648"},
	98:   {"a,b\"c", "\"Quote\", Comma & Co.", "9007199254740993"},
	143:  {"job:1", "R. E. Served", "100"},
	500:  {"{\"id\": null}", "Jason Null", "1"},
	901:  {"0", "Zéro", "0"},
	902:  {"00", "Zéro Zéro", "0"},
	1500: {"A-1500-with-an-id-of-exactly-sixty-four-bytes-which-is-the-limit", "Lang Lang", "1"},
}

// names are combined, given name and family name of one script.
var names = [][2][]string{
	{{"Ada", "Björn", "Chloé", "Łucja", "Nguyễn", "Þórdís", "Siân", "Ağca"}, {"Lovelace", "O'Neil", "Sørensen", "Müller-Lüdenscheidt", "Dvořák", "Ng", "d'Ávila"}},
	{{"Пётр", "Ольга", "Ганна", "Ђорђе"}, {"Чайковский", "Їжакевич", "Щербакова", "Њаради"}},
	{{"Ελένη", "Νίκος", "Σοφία"}, {"Παπαδοπούλου", "Καζαντζάκης", "Ωνάσης"}},
	{{"ليلى", "محمد", "فاطمة"}, {"العلوي", "بن سلمان", "الزهراء"}},
	{{"נעמי", "דוד", "שירה"}, {"כהן", "בן־גוריון", "לוי"}},
	{{"伟", "秀英", "𠮷"}, {"王", "欧阳", "李"}},
	{{"太郎", "さくら", "ケイコ"}, {"山田", "渡邉", "ササキ"}},
	{{"민준", "서연", "지우"}, {"김", "이", "박"}},
	{{"प्रिया", "अर्जुन", "ज्योति"}, {"शर्मा", "त्रिवेदी", "कृष्णन"}},
	{{"สมชาย", "ปิ่น", "น้ำฝน"}, {"ใจดี", "ศรีสุข", "วงศ์ใหญ่"}},
	{{"🦄", "Zoë 👩🏽‍🚀", "☃"}, {"Sparkle ✨", "🇺🇳", "l\u2019Étoile"}},
}

func main() {
	out := flag.String("o", "orders.csv", "file to write")
	flag.Parse()
	if err := os.WriteFile(*out, generate(), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func generate() []byte {
	random := rand.New(rand.NewPCG(2000, 60))
	pick := func(from []string) string { return from[random.IntN(len(from))] }

	var file bytes.Buffer
	out := csv.NewWriter(&file)
	write := func(record []string) { _ = out.Write(record) } // a buffer takes everything
	write([]string{"order_id", "customer", "cents"})

	var placed [][]string
	again := spread(random)
	for n := 1; n <= lines; n++ {
		if bad, is := malformed[n]; is {
			out.Flush()
			file.WriteString(bad + "\n")
			continue
		}
		if far, is := again[n]; is {
			write(placed[max(len(placed)-far, 0)])
			continue
		}
		record, is := odd[n]
		if !is {
			script := names[random.IntN(len(names))]
			record = []string{fmt.Sprintf("R-%04d", n), pick(script[0]) + " " + pick(script[1]), amount(random)}
		}
		placed = append(placed, record)
		write(record)
	}
	out.Flush()
	return file.Bytes()
}

// spread chooses the lines that repeat an order, and how many orders back that one is.
func spread(random *rand.Rand) map[int]int {
	again := map[int]int{}
	for len(again) < duplicates {
		n := 20 + random.IntN(lines-20)
		if _, is := malformed[n]; is || odd[n] != nil {
			continue
		}
		if len(again)%3 == 0 {
			again[n] = 1 + random.IntN(3)
		} else {
			again[n] = 1 + random.IntN(n)
		}
	}
	return again
}

// amount is small as a rule, at times zero or huge.
func amount(random *rand.Rand) string {
	switch random.IntN(50) {
	case 0:
		return "0"
	case 1:
		return strconv.FormatInt(math.MaxInt64-random.Int64N(3), 10)
	case 2:
		return strconv.FormatInt(random.Int64(), 10)
	}
	return strconv.FormatInt(1+random.Int64N(100_000), 10)
}
