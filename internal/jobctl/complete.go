package jobctl

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

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

// completeKinds completes the kinds that have dead jobs, or also those that workers handle.
func (c *cli) completeKinds(dead bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		db, err := c.connect(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer db.pool.Close()
		op := postgres.Operator{Pool: db.pool}
		kinds, err := op.DeadKinds(ctx)
		if err == nil && !dead {
			var handled []string
			handled, err = op.HandledKinds(ctx)
			kinds = append(kinds, handled...)
		}
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		kinds = slices.DeleteFunc(kinds, func(k string) bool { return escape(k) != k })
		slices.Sort(kinds)
		return slices.Compact(kinds), cobra.ShellCompDirectiveNoFileComp
	}
}
