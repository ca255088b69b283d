package sqltest

import (
	"context"

	"gorm.io/gorm"

	"github.com/jobgen-go/jobgen/jobs"
)

// User is a row of users.
type User struct{ Name string }

// SignUpGORM stores a user and the job that welcomes it, both or neither.
func SignUpGORM(ctx context.Context, db *gorm.DB, name string) (ref jobs.Ref[Sent], err error) {
	err = db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&User{Name: name}).Error; err != nil {
			return err
		}
		ref, err = EnqueueWelcome(ctx, jobs.SQL(tx.Statement.ConnPool), Welcome{Name: name})
		return err
	})
	return ref, err
}
