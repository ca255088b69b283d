package postgres

import (
	"context"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
)

// What jobctl exporter shows beside levels and flows.
type (
	MeasuredWorker   = gen.MetricsWorkersRow
	MeasuredSchedule = gen.MetricsSchedulesRow
	MeasuredHorizon  = gen.MetricsHorizonRow
	MeasuredTable    = gen.MetricsTablesRow
	MeasuredIndex    = gen.MetricsIndexesRow
	MeasuredServer   = gen.MetricsServerRow
)

func (o Operator) MeasureWorkers(ctx context.Context) ([]MeasuredWorker, error) {
	rows, err := o.q().MetricsWorkers(ctx)
	return rows, translate(err)
}

func (o Operator) MeasureSchedules(ctx context.Context) ([]MeasuredSchedule, error) {
	rows, err := o.q().MetricsSchedules(ctx)
	return rows, translate(err)
}

// MeasureHorizon has a row for each sort of holder that there is: session, prepared, slot, standby.
func (o Operator) MeasureHorizon(ctx context.Context) ([]MeasuredHorizon, error) {
	rows, err := o.q().MetricsHorizon(ctx)
	return rows, translate(err)
}

func (o Operator) MeasureTables(ctx context.Context) ([]MeasuredTable, []MeasuredIndex, error) {
	tables, err := o.q().MetricsTables(ctx)
	if err != nil {
		return nil, nil, translate(err)
	}
	indexes, err := o.q().MetricsIndexes(ctx)
	return tables, indexes, translate(err)
}

func (o Operator) MeasureServer(ctx context.Context) (MeasuredServer, error) {
	row, err := o.q().MetricsServer(ctx)
	return row, translate(err)
}

// SchemaVersion is the newest migration that was applied.
func (o Operator) SchemaVersion(ctx context.Context) (int64, error) {
	row, err := o.q().SchemaVersion(ctx)
	return row.Version, explain(err)
}
