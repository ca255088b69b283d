package jobctl

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// completeTimeout is how long a shell waits for the database when a person presses Tab.
const completeTimeout = 2 * time.Second

// completeList completes the last of values joined by commas.
func completeList(values []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var out []string
		for _, v := range values {
			if !slices.Contains(strings.Split(before, ","), v) {
				out = append(out, before+v)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// completeFrom completes with what the database knows.
func (c *cli) completeFrom(read func(context.Context, postgres.Operator) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		db, err := c.connect(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer db.pool.Close()
		found, err := read(ctx, postgres.Operator{Pool: db.pool})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		found = slices.DeleteFunc(found, func(s string) bool {
			name, _, _ := strings.Cut(s, "\t")
			return escape(name) != name || slices.Contains(args, name)
		})
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeKinds completes the kinds that have dead jobs, or also those that workers handle.
func (c *cli) completeKinds(dead bool) cobra.CompletionFunc {
	return c.completeFrom(func(ctx context.Context, op postgres.Operator) ([]string, error) {
		kinds, err := op.DeadKinds(ctx)
		if err == nil && !dead {
			var handled []string
			handled, err = op.HandledKinds(ctx)
			kinds = append(kinds, handled...)
		}
		slices.Sort(kinds)
		return slices.Compact(kinds), err
	})
}

// completeQueues completes the queues that workers poll or about which something has been decided.
func (c *cli) completeQueues() cobra.CompletionFunc {
	return c.completeFrom(func(ctx context.Context, op postgres.Operator) (names []string, err error) {
		queues, _, err := op.Queues(ctx)
		for _, q := range queues {
			names = append(names, q.Name)
		}
		return names, err
	})
}

// completeIDs completes the newest jobs of these statuses, each with what it is.
func (c *cli) completeIDs(statuses ...string) cobra.CompletionFunc {
	return c.completeFrom(func(ctx context.Context, op postgres.Operator) (ids []string, err error) {
		walk, err := op.Walk(ctx, engine.Filter{Statuses: statuses}, true, math.MaxInt64)
		if err != nil {
			return nil, err
		}
		found, err := walk.Next(ctx, completeMost)
		if err != nil {
			return nil, err
		}
		jobs, err := op.List(ctx, found)
		for _, j := range jobs {
			ids = append(ids, cobra.CompletionWithDesc(strconv.FormatInt(j.ID, 10), escape(j.Status+" "+j.Kind)))
		}
		return ids, err
	})
}

// completeMost is how many ids a shell offers.
const completeMost = 30
