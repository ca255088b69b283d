package jobctl

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jobgen-go/jobgen/internal/human"
)

// watchTimeout is how long a look may take before it counts as an error.
const watchTimeout = 15 * time.Second

// outage is what keeps a watch from looking anew.
type outage struct {
	text  string
	since time.Duration // how old the last picture is
}

// watching shows pictures of something that changes.
type watching[T any] struct {
	every time.Duration
	look  func(context.Context) (T, error)
	// text is a picture; down is nil unless it is an old one.
	text func(picture T, down *outage) string
	// line is a picture as one line of JSON; picture is nil if there was none.
	line func(picture *T, down *outage) string
}

// watch looks at something again and again until ctx ends: on a terminal it draws in place, elsewhere one block after another.
// The first look must succeed; after that it goes on whatever happens, and says so.
func watch[T any](ctx context.Context, c *cli, w watching[T]) error {
	screen := c.Width > 0 && !c.json && c.Getenv("TERM") != "dumb"
	last, err := look(ctx, w)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	var s *fullScreen
	if screen {
		s = openScreen(c.Stdout)
		defer func() { s.close(w.text(last, nil)) }()
	}
	seen, asked, took := time.Now(), time.Now(), time.Duration(0)
	var down *outage
	show := func() error {
		switch {
		case c.json && down != nil:
			_, err = io.WriteString(c.Stdout, w.line(nil, down)+"\n")
		case c.json:
			_, err = io.WriteString(c.Stdout, w.line(&last, nil)+"\n")
		case screen:
			c.resize()
			err = s.draw(w.text(last, down), c.Height)
		case down != nil:
			_, err = fmt.Fprintf(c.Stdout, "%s  %s\n\n", c.time(time.Now()), down.text)
		default:
			_, err = io.WriteString(c.Stdout, w.text(last, nil)+"\n")
		}
		if err != nil {
			return findingf("cannot write the output: %s", err)
		}
		return nil
	}
	if err := show(); err != nil {
		return err
	}
	type answer struct {
		picture T
		err     error
	}
	var answers chan answer
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case a := <-answers:
			answers, took = nil, time.Since(asked)
			if down = nil; a.err != nil {
				down = &outage{a.err.Error(), time.Since(seen)}
			} else {
				last, seen = a.picture, time.Now()
			}
			if err := show(); err != nil {
				return err
			}
		case <-tick.C:
			switch {
			case answers == nil && time.Since(asked) >= restAfter(took):
				answers, asked = make(chan answer, 1), time.Now()
				go func() {
					picture, err := look(ctx, w)
					answers <- answer{picture, err}
				}()
			case screen && answers != nil && time.Since(asked) >= 2*w.every:
				text := fmt.Sprintf("no answer for %s", human.Age(time.Since(asked)))
				if down != nil {
					text = down.text
				}
				down = &outage{text, time.Since(seen)}
				if err := show(); err != nil {
					return err
				}
			}
		}
	}
}

func look[T any](ctx context.Context, w watching[T]) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	return w.look(ctx)
}

// restAfter bounds the load of a watch: it looks for a fifth of the time at most.
func restAfter(took time.Duration) time.Duration { return 5 * took }

// resize learns how large the terminal is now.
func (c *cli) resize() {
	if c.Size == nil {
		return
	}
	if width, height := c.Size(); width > 0 {
		c.Width, c.Height = width, height
	}
}

// fullScreen is a terminal's other screen, which leaves what was on it as it was.
type fullScreen struct{ w io.Writer }

const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the other screen, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	cursorHome  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

func openScreen(w io.Writer) *fullScreen {
	_, _ = io.WriteString(w, enterScreen)
	return &fullScreen{w}
}

// draw replaces what is shown, in one write so that nothing flickers. What does not fit is left out, and said to be.
func (s *fullScreen) draw(text string, height int) error {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if height > 1 && len(lines) > height {
		more := len(lines) - height + 1
		lines = append(lines[:height-1], fmt.Sprintf("… %d more lines: a higher terminal, --queue, --kind or --by shows them", more))
	}
	_, err := io.WriteString(s.w, cursorHome+strings.Join(lines, clearLine+"\n")+clearLine+clearBelow)
	return err
}

// close leaves the last picture behind.
func (s *fullScreen) close(last string) {
	_, _ = io.WriteString(s.w, leaveScreen+last)
}
