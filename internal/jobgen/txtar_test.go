package jobgen

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An archive is a text followed by files, each after a line "-- name --": the txtar form. Parsing it takes a few lines,
// which spares everybody who imports this module a dependency in their module graph.
type archive struct {
	text  string
	files []archiveFile
}

type archiveFile struct{ name, body string }

func parseArchive(data []byte) (a archive) {
	into := &a.text
	for line := range bytes.Lines(data) {
		if name, ok := fileMark(string(line)); ok {
			a.files = append(a.files, archiveFile{name: name})
			into = &a.files[len(a.files)-1].body
			continue
		}
		*into += string(line)
	}
	return a
}

func fileMark(line string) (name string, ok bool) {
	line = strings.TrimRight(line, "\n")
	if !strings.HasPrefix(line, "-- ") || !strings.HasSuffix(line, " --") || len(line) < 7 {
		return "", false
	}
	return strings.TrimSpace(line[3 : len(line)-3]), true
}

func (a archive) format() []byte {
	var b bytes.Buffer
	b.WriteString(a.text)
	for _, f := range a.files {
		fmt.Fprintf(&b, "-- %s --\n%s", f.name, f.body)
	}
	return b.Bytes()
}

// extract writes the files under dir and a go.mod if the archive has none.
func (a archive) extract(t testing.TB, dir, goMod string) {
	t.Helper()
	write := func(name, body string) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", goMod)
	for _, f := range a.files {
		write(f.name, f.body)
	}
}

func readArchive(t testing.TB, path string) archive {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return parseArchive(data)
}
