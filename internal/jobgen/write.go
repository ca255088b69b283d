package jobgen

import (
	"bytes"
	"errors"
	"fmt"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
)

// Changed tells whether the file has to be touched at all.
func (o Output) Changed() bool { return o.New == nil || o.Old == nil || !bytes.Equal(o.Old, o.New) }

// Findings is what Check reports: outputs that are missing, stale or orphaned.
func Findings(outputs []Output) (findings []Diag) {
	for _, o := range outputs {
		at := token.Position{Filename: o.Path, Line: 1, Column: 1}
		switch {
		case !o.Changed():
		case filepath.Base(o.Path) == LockName && o.New == nil:
			findings = append(findings, Diag{Pos: at, Rule: ruleOrphan, Msg: "no kinds are left to keep this lock for: run go tool jobgen ./... to remove it"})
		case filepath.Base(o.Path) == LockName && o.Old == nil:
			findings = append(findings, Diag{Pos: at, Rule: ruleStale, Msg: "this lock is missing: run go tool jobgen ./... and commit it"})
		case filepath.Base(o.Path) == LockName:
			findings = append(findings, Diag{Pos: at, Rule: ruleStale, Msg: "this lock does not say what the sources do: run go tool jobgen ./... and commit it"})
		case o.New == nil:
			findings = append(findings, Diag{Pos: at, Rule: ruleOrphan, Msg: "the package declares no kinds any more: run go tool jobgen ./... to remove this file"})
		case o.Old == nil:
			findings = append(findings, Diag{Pos: at, Rule: ruleStale, Msg: "this file is missing: run go tool jobgen ./..."})
		default:
			findings = append(findings, Diag{Pos: at, Rule: ruleStale, Msg: "this file is not what the annotations ask for: run go tool jobgen ./..."})
		}
	}
	return findings
}

// Write puts the outputs in place and returns those it changed. It works in two steps, so that a full disk or a missing permission
// leaves the module as it was: first every new file beside its place, then the renames; if one of those fails, what
// was replaced is put back.
func Write(outputs []Output) (changed []Output, err error) {
	var temps []string
	defer func() {
		for _, t := range temps {
			_ = os.Remove(t) // gone already if all went well
		}
	}()
	for _, o := range outputs {
		if !o.Changed() {
			continue
		}
		mode, err := replaceable(o)
		if err != nil {
			return nil, err
		}
		if o.New != nil {
			temps = append(temps, tempPath(o.Path))
			if err := writeNew(tempPath(o.Path), o.New, mode); err != nil {
				return nil, writeError(o.Path, err)
			}
		}
		changed = append(changed, o)
	}
	for i, o := range changed {
		if o.New == nil {
			err = os.Remove(o.Path)
		} else {
			err = os.Rename(tempPath(o.Path), o.Path)
		}
		if err != nil {
			return nil, errors.Join(writeError(o.Path, err), restore(changed[:i]))
		}
	}
	return changed, nil
}

func writeError(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s cannot be written: its directory is not writable for you", path)
	}
	return fmt.Errorf("writing %s: %w", path, err)
}

// tempPath is in the same directory, for a rename across file systems is a copy; the dot hides it from the go command.
func tempPath(path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.tmp", filepath.Base(path), os.Getpid()))
}

// replaceable gives the mode of the file to write, or says why it must not be written. A rename would go through
// where somebody has made the file read-only; we take that as meant.
func replaceable(o Output) (fs.FileMode, error) {
	info, err := os.Lstat(o.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("looking at the old output: %w", err)
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%s is not a regular file: move it away", o.Path)
	case o.Old == nil:
		return 0, fmt.Errorf("%s has appeared while jobgen was at work: run it again", o.Path)
	case info.Mode()&0o200 == 0:
		return 0, fmt.Errorf("%s is read-only: make it writable (chmod u+w) if jobgen is to replace it", o.Path)
	}
	f, err := os.OpenFile(o.Path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrPermission) {
		return 0, fmt.Errorf("%s belongs to somebody else and is not writable for you: make it yours (chown) if jobgen is to replace it", o.Path)
	} else if err != nil {
		return 0, fmt.Errorf("looking at the old output: %w", err)
	}
	_ = f.Close() // nothing was written
	return info.Mode().Perm(), nil
}

// writeNew writes a file that does not exist yet. Mode 0 leaves the permissions to the umask.
func writeNew(path string, content []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if mode != 0 && err == nil {
		err = f.Chmod(mode)
	}
	return errors.Join(err, f.Close())
}

// restore puts the old content back in place.
func restore(outputs []Output) (err error) {
	for _, o := range outputs {
		if o.Old == nil {
			err = errors.Join(err, os.Remove(o.Path))
		} else {
			err = errors.Join(err, os.WriteFile(o.Path, o.Old, 0o666))
		}
	}
	return err
}
