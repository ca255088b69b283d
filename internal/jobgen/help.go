package jobgen

import (
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Help writes the table of verbs and keys, or all there is to say about one verb. It reports whether there is such a topic.
func Help(w io.Writer, topic string) bool {
	if topic == "keys" {
		fmt.Fprint(w, "Annotations are //job: lines in a type's doc comment (defaults and registry: in the package's):\n")
		for _, v := range verbs {
			v.help(w)
		}
		fmt.Fprint(w, "\nA DURATION is Go's (30s, 1h30m) with d for days before it (30d). A NAME is lower-case words joined by dots.\n")
		return true
	}
	switch topic {
	case "rules":
		helpRules(w)
		return true
	case "lock":
		fmt.Fprint(w, lockManual)
		return true
	}
	v := findVerb(topic)
	if v != nil {
		v.help(w)
		fmt.Fprintf(w, "\n%s", v.manual())
	}
	return v != nil
}

//go:embed manual
var manual embed.FS

// manual is what there is to say about the verb beyond the table, and an example.
func (v *verb) manual() string {
	text, _ := manual.ReadFile("manual/" + v.Name + ".txt") // there is one for each verb, see the tests
	return string(text)
}

// HelpJSON writes the table for programs.
func HelpJSON(w io.Writer) error {
	type topic struct {
		verb
		Manual string `json:"manual"`
	}
	var topics []topic
	for _, v := range verbs {
		topics = append(topics, topic{v, v.manual()})
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "\t")
	return enc.Encode(topics)
}

// Topics are what Help knows.
func Topics() []string {
	return slices.Concat([]string{"keys"}, verbNames(), []string{"rules", "lock"})
}

func (v *verb) help(w io.Writer) {
	usage := "//job:" + v.Name
	if v.Arg != nil {
		usage += " " + v.Arg.Value
	}
	often := ""
	if v.Repeats {
		often = " (may be repeated)"
	}
	fmt.Fprintf(w, "\n%s%s\n    %s\n", usage, often, v.Doc)
	if v.Arg != nil {
		fmt.Fprintf(w, "      %-26s %s\n", v.Arg.Name, v.Arg.Doc)
	}
	for _, k := range v.Keys {
		form := k.Name
		if k.Value != "" {
			form += "=" + k.Value
		}
		def := ""
		if k.Default != "" {
			def = " (default " + k.Default + ")"
		}
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("      %-26s %s%s", form, k.Doc, def), " "))
	}
}
