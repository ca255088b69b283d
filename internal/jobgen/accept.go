package jobgen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Accept records one exception: that exactly the breaking change that is there now may be made. It changes nothing but
// the lock. The error of a change that is not there lists those that are.
func Accept(ctx context.Context, dir, rule, subject, reason string) ([]Output, []Diag, error) {
	if strings.TrimSpace(reason) == "" {
		return nil, nil, errors.New(`accept needs -reason "…": who reads the lock next year wants to know why no job is harmed`)
	}
	if findRule(rule) == nil {
		var ids []string
		for _, r := range rules {
			ids = append(ids, r.ID)
		}
		return nil, nil, fmt.Errorf("there is no rule %s%s (go tool jobgen help rules)", rule, didYouMean(rule, ids))
	}
	ds, guards, err := compareAll(ctx, dir)
	switch {
	case err != nil:
		return nil, nil, err
	case Stop(ds.list):
		return nil, ds.sorted(), nil
	}
	var found []string
	for _, g := range guards {
		for _, ch := range g.changes {
			switch {
			case ch.rule.Class != Breaking:
			case ch.rule.ID == rule && ch.subject == subject && ch.rule.Forget:
				return nil, nil, fmt.Errorf("a kind that is gone is forgotten, not accepted: go tool jobgen forget %s", subject)
			case ch.rule.ID == rule && ch.subject == subject:
				return g.accept(ch, reason), nil, nil
			case !g.allowed(ch):
				found = append(found, ch.rule.ID+" "+ch.subject)
			}
		}
	}
	if len(found) == 0 {
		return nil, nil, fmt.Errorf("there is no %s of %s to accept: no incompatible change is there at all", rule, subject)
	}
	slices.Sort(found)
	return nil, nil, fmt.Errorf("there is no %s of %s to accept; what there is:\n\t%s", rule, subject, strings.Join(found, "\n\t"))
}

// allowed tells whether the change has been accepted already.
func (g *guard) allowed(ch change) bool {
	e, ok := g.lock.accepted[exceptionKey(ch.kind, ch.rule.ID, ch.subject)]
	return ok && !e.Used && e.From == ch.from && e.To == ch.to
}

// accept is the lock with one more exception, and else as it was.
func (g *guard) accept(ch change, reason string) []Output {
	l := newLock()
	l.facts, l.accepted = g.lock.facts, g.lock.accepted
	l.accepted[exceptionKey(ch.kind, ch.rule.ID, ch.subject)] = exception{From: ch.from, To: ch.to, Reason: reason}
	return []Output{{Path: g.path, Old: g.old, New: l.format()}}
}

// unchecked tells what to make sure of before a kind, or a removed field's name, is forgotten.
func unchecked(kind, subject string) error {
	return fmt.Errorf(`nothing is forgotten yet. Jobs of a kind that is forgotten can never run, and results of it cannot be awaited. Make sure that none are left,
in every database that the application has:

	jobctl jobs list --kind %[1]s
	SELECT count(*) FROM jobgen.jobs WHERE kind = '%[1]s';
	SELECT count(*) FROM jobgen.job_result WHERE kind = '%[1]s';

and that no running program enqueues them any more. Then: go tool jobgen forget %[2]s -checked`, kind, shellWord(subject))
}

// Forget drops from the lock what is not declared any more: KIND, which may be an earlier name of another one, or KIND.FIELD for the name of a removed field, which
// can then come back as something else. Unless the caller has checked that nothing of it is left, it is an error that
// tells how to.
func Forget(ctx context.Context, dir, subject string, checked bool) ([]Output, []Diag, error) {
	ds, guards, err := compareAll(ctx, dir)
	switch {
	case err != nil:
		return nil, nil, err
	case Stop(ds.list):
		return nil, ds.sorted(), nil
	}
	for _, g := range guards {
		for _, ch := range g.changes {
			if ch.rule.Forget && ch.subject == subject {
				if !checked {
					return nil, nil, unchecked(subject, subject)
				}
				if g.lock.drop(subject); ch.kind != subject { // an earlier name
					delete(g.lock.facts, ch.kind+"/was/"+subject)
				}
				return []Output{{Path: g.path, Old: g.old, New: g.lock.format()}}, nil, nil
			}
		}
		if kind, fact := g.removedField(subject); fact != "" {
			if !checked {
				return nil, nil, unchecked(kind, subject)
			}
			delete(g.lock.facts, fact)
			g.lock.tidy()
			return []Output{{Path: g.path, Old: g.old, New: g.lock.format()}}, nil, nil
		}
	}
	var names []string
	for _, g := range guards {
		if g.lock.of(subject) != nil {
			return nil, nil, fmt.Errorf("kind %s is still declared: remove the type and its //job: lines first", subject)
		}
		for _, ch := range g.changes {
			if ch.rule.Forget {
				names = append(names, ch.subject)
			}
		}
	}
	if len(names) == 0 {
		return nil, nil, fmt.Errorf("the lock has no removed kind or field %s", subject)
	}
	return nil, nil, fmt.Errorf("the lock has no removed kind or field %s; kinds that are gone: %s", subject, strings.Join(names, ", "))
}

// removedField finds the fact of a field that is kept only for its name.
func (g *guard) removedField(subject string) (kind, fact string) {
	for name := range g.lock.kinds() {
		place, ok := strings.CutPrefix(subject, name)
		fact := name + "/v" + g.lock.facts[name+"/version"] + place
		if strings.HasPrefix(place, "/result") {
			fact = name + place
		}
		if ok && strings.HasPrefix(g.lock.facts[fact], "gone ") {
			return name, fact
		}
	}
	return "", ""
}

// compareAll compares everything in the module or workspace of dir.
func compareAll(ctx context.Context, dir string) (*diags, []*guard, error) {
	p, err := resolve(ctx, dir, []string{"work"})
	if err != nil {
		return nil, nil, err
	}
	for _, k := range p.kinds {
		k.check(p.ds, p.r)
	}
	if Stop(p.ds.list) {
		return p.ds, nil, nil
	}
	guards, err := compareModules(p)
	return p.ds, guards, err
}
