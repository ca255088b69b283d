package jobgen

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// Check reports what Plan would change, and everything that would keep it from that. It changes nothing.
func Check(ctx context.Context, dir string, patterns []string) ([]Diag, error) {
	p, err := plan(ctx, dir, patterns)
	if err != nil {
		return nil, err
	}
	outputs := p.outputs
	if outputs == nil {
		outputs = p.generated // what changes incompatibly may be stale as well
	}
	p.ds.list = append(p.ds.list, Findings(outputs)...)
	return p.ds.sorted(), nil
}

// Formats are how Report can write.
var Formats = []string{"text", "json", "github"}

// Report writes diagnostics, their paths relative to dir where that is shorter:
//
//	text    a line each, path:line:col: message (rule)
//	json    one object, {"findings": [{"path", "line", "column", "rule", "class", "subject", "message"}, …]}
//	github  workflow commands, which GitHub shows as annotations at the line
func Report(w io.Writer, format, dir string, list []Diag) error {
	switch format {
	case "json":
		return reportJSON(w, dir, list)
	case "github":
		for _, d := range list {
			if _, err := fmt.Fprintln(w, d.github(dir)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, d := range list {
		if _, err := fmt.Fprintln(w, d.Format(dir)); err != nil {
			return err
		}
	}
	return nil
}

func reportJSON(w io.Writer, dir string, list []Diag) error {
	type finding struct {
		Path    string `json:"path"`
		Line    int    `json:"line"`
		Column  int    `json:"column"`
		Rule    string `json:"rule"`
		Class   Class  `json:"class,omitempty"` // of a change to what is stored
		Note    bool   `json:"note,omitempty"`  // not a mistake
		Subject string `json:"subject,omitempty"`
		Message string `json:"message"`
		Paste   string `json:"paste,omitempty"`
	}
	out := struct {
		Findings []finding `json:"findings"`
	}{[]finding{}}
	for _, d := range list {
		f := finding{filepath.ToSlash(shortPath(dir, d.Pos.Filename)), d.Pos.Line, d.Pos.Column, d.Rule, "", d.Note, d.Subject, d.Msg, d.Paste}
		if d.Subject != "" {
			f.Class = findRule(d.Rule).Class
		}
		out.Findings = append(out.Findings, f)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "\t")
	return enc.Encode(out)
}

// What GitHub's workflow commands want escaped: in a message, and in the properties before it.
var (
	githubData     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	githubProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

func (d Diag) github(dir string) string {
	level := "error"
	if d.Note {
		level = "notice"
	}
	msg := d.Msg
	if d.Paste != "" {
		msg += "\n" + d.Paste
	}
	return fmt.Sprintf("::%s file=%s,line=%d,col=%d,title=%s::%s", level,
		githubProperty.Replace(filepath.ToSlash(shortPath(dir, d.Pos.Filename))), d.Pos.Line, d.Pos.Column, githubProperty.Replace("jobgen: "+d.Rule), githubData.Replace(msg))
}
