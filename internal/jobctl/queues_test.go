package jobctl_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
)

func TestQueuesArePausedResumedAndSet(t *testing.T) {
	t.Parallel()
	q := open(t)
	name := `Caps, "quotes" and 'more'`
	q.ctl("queues", "list").want(0)
	q.ctl("queues", "pause", name, "plain").want(0, "QUEUE", name, "paused for 0s", "no live worker polls", "plain").clean(0)
	q.ctl("queues", "pause", name).want(0, "paused for")
	self := engine.Worker{ID: uuid.New(), Queues: []string{name, "polled"}, Kinds: []engine.Kind{{Name: "k", Version: 1}}}
	if err := q.store.Register(t.Context(), self, time.Hour); err != nil {
		t.Fatal(err)
	}
	q.ctl("queues", "set", name, "--weight", "3", "--slots", "7").want(0, "3", "7")
	q.ctl("queues", "set", name, "--slots", "0").want(0)
	q.ctl("queues", "resume", "plain").want(0, "open")

	o := q.ctl("queues", "list", "--json").want(0)
	var got struct {
		Queues []engine.ListedQueue
		Now    time.Time
	}
	if err := json.Unmarshal([]byte(o.out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Queues) != 3 || got.Now.IsZero() {
		t.Fatalf("%s", o.out)
	}
	first, plain, polled := got.Queues[0], got.Queues[1], got.Queues[2]
	if first.Name != name || first.PausedAt == nil || first.Weight != 3 || first.Slots != 0 || first.Workers != 1 {
		t.Errorf("%+v", first)
	}
	if plain.Name != "plain" || plain.PausedAt != nil || plain.Workers != 0 || polled.Name != "polled" || polled.Workers != 1 {
		t.Errorf("%+v %+v", plain, polled)
	}
}

func TestWhatCannotBeDecidedAboutAQueueIsWrongUsage(t *testing.T) {
	t.Parallel()
	q := open(t)
	for _, c := range []struct {
		args string
		want string
	}{
		{"pause", "name the queues"},
		{"set", "name the queues"},
		{"set|q", "say what to set"},
		{"set|q|--weight|-1", "1 to 1000"},
		{"set|q|--slots|100001", "1 to 100000"},
		{"set|q|--slots|x", "invalid argument"},
		{"pause|" + strings.Repeat("q", 200), "has 200 bytes"},
		{"resume|", "has 0 bytes"},
		{"pause|ok|a\x00b", "queue name"},
	} {
		q.ctl(append([]string{"queues"}, strings.Split(c.args, "|")...)...).want(2, c.want).sentence()
	}
	q.ctl("queues", "list").want(0)
}
