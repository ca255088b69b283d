package jobgen

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// An archive is files in a txtar, or the files of a module that a test makes up.
type archive struct {
	text  string
	files []archiveFile
}

type archiveFile struct{ name, body string }

func parseArchive(data []byte) (a archive) {
	parsed := txtar.Parse(data)
	a.text = string(parsed.Comment)
	for _, f := range parsed.Files {
		a.files = append(a.files, archiveFile{f.Name, string(f.Data)})
	}
	return a
}

func (a archive) format() []byte {
	out := txtar.Archive{Comment: []byte(a.text)}
	for _, f := range a.files {
		out.Files = append(out.Files, txtar.File{Name: f.name, Data: []byte(f.body)})
	}
	return txtar.Format(&out)
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
