package jobctl

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/exporter"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// exporterAddress is on this machine only: the page names queues and kinds, and asks nobody who he is. The port is beside the
// range that exporters have been given (9100 to 9999, all taken) and below those that clients get (from 32768); it is that of
// the exporter for Postgres with a 2 before it.
const exporterAddress = "localhost:29187"

func (c *cli) exporter() *cobra.Command {
	var listen string
	var config exporter.Config
	cmd := &cobra.Command{
		Use:   "exporter",
		Short: "Serve metrics for Prometheus",
		Long: `Exporter serves metrics of the whole queue at /metrics, read from the database, and
/-/healthy, which says that the process lives. It runs until SIGTERM or Ctrl-C. One
for each database is enough; a second one counts the same again.

Scrapes share what was read within --interval, so that more servers do not cost the
database more. While the database is away, jobgen_up is 0 and what it would say is
left out; the process goes on. It needs no more than to read: docs/operating/metrics.md
has the role, and every metric, alert rules and a dashboard.

There is no TLS and no password: put a proxy before it if others can reach it.`,
		Example: `  jobctl exporter
  jobctl exporter --listen :29187 --interval 30s`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE: func(*cobra.Command, []string) error {
			switch {
			case config.Interval < 0 || config.Interval > time.Hour:
				return fmt.Errorf("--interval is %s; it may be 0s to 1h", config.Interval)
			case config.Timeout < 100*time.Millisecond || config.Timeout > 10*time.Minute:
				return fmt.Errorf("--timeout is %s; it may be 100ms to 10m", config.Timeout)
			case config.Most < 1 || config.Most > 100_000:
				return fmt.Errorf("--most is %d; it may be 1 to 100000", config.Most)
			case listen == "": // which would be any port of all addresses
				return errors.New("--listen is empty; it is an address like localhost:29187")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			db, err := c.connect(ctx)
			if err != nil {
				return err
			}
			defer db.pool.Close()
			var lc net.ListenConfig
			l, err := lc.Listen(ctx, "tcp", listen)
			if err != nil {
				return fmt.Errorf("--listen %s: %w", listen, err)
			}
			config.Log = slog.New(slog.NewTextHandler(c.Stderr, nil))
			config.Explain = db.explain
			config.Log.Info("metrics are served", "address", fmt.Sprintf("http://%s/metrics", l.Addr()), "database", db.target)
			err = exporter.New(postgres.Operator{Pool: db.pool}, config).Serve(ctx, l)
			config.Log.Info("metrics are served no longer")
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", exporterAddress, "`address` to serve at; :29187 is all addresses of this machine")
	flags.DurationVar(&config.Interval, "interval", 15*time.Second, "read the database at most this often")
	flags.DurationVar(&config.Timeout, "timeout", 8*time.Second, "and in at most this time; less than the scrape's")
	flags.IntVar(&config.Most, "most", 500, "`kinds` shown by themselves; the others are one, named other")
	return cmd
}
