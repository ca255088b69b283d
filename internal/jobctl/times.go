package jobctl

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// What jobs may be given are times of the years 1 to 9999. Somebody with psql can put others into the tables, infinity above all;
// Go has none, JSON no later years, and one such row must not keep an operator from seeing all others, nor from mending it.
var (
	earliest = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
)

// clampedTimes reads times outside of these years as the first or the last of them.
type clampedTimes struct{ pgtype.TimestamptzCodec }

func (c *clampedTimes) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, is := target.(*time.Time); !is {
		return c.TimestamptzCodec.PlanScan(m, oid, format, target)
	}
	return clampedTime{c.TimestamptzCodec.PlanScan(m, oid, format, &pgtype.Timestamptz{})}
}

type clampedTime struct{ inner pgtype.ScanPlan }

func (p clampedTime) Scan(src []byte, target any) error {
	var t pgtype.Timestamptz
	if err := p.inner.Scan(src, &t); err != nil {
		return err
	}
	if !t.Valid {
		return fmt.Errorf("cannot scan NULL into %T", target)
	}
	at := target.(*time.Time)
	switch {
	case t.InfinityModifier == pgtype.NegativeInfinity || t.InfinityModifier == pgtype.Finite && t.Time.Before(earliest):
		*at = earliest
	case t.InfinityModifier == pgtype.Infinity || t.Time.After(latest):
		*at = latest
	default:
		*at = t.Time
	}
	return nil
}
