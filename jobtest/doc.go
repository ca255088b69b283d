// Package jobtest is for the tests of an application that uses jobgen: a database for each test (DB), a look at what was
// enqueued (Enqueued, EnqueuedOne), a worker that runs it (Run, RunJob), a clock to move (NewClock), and a process that dies
// while it runs a job (Crash).
//
//	func TestSignUpSendsMail(t *testing.T) {
//		t.Parallel()
//		db := jobtest.DB(t)
//		if err := app.SignUp(t.Context(), db, "ada@example.com"); err != nil {
//			t.Fatal(err)
//		}
//		mail := jobtest.EnqueuedOne[app.SendMail](t, db, app.SendMailKind)
//		if mail.Payload.To != "ada@example.com" {
//			t.Errorf("mail goes to %q", mail.Payload.To)
//		}
//	}
//
// All of it may be used from parallel tests, in any number of test binaries at once.
package jobtest
