package postgres

// Translate is for tests of errors that no server gives on demand.
var Translate = translate
