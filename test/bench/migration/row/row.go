// Package row is what the migration of bench-migration stores, and its settings.
package row

import "github.com/singletonjob/operator/fence"

// Variables of the program, besides those of the agent.
const (
	AddressEnv = "DATABASE"
	SubjectEnv = "SUBJECT"
	// EveryEnv is how long the work of a step takes.
	EveryEnv = "EVERY"
)

// Steps is the number of steps of a migration.
const Steps = 100

// The first arguments of a program that looks after the database instead of writing to it.
const (
	Prepare = "prepare"
	List    = "list" // print all rows as JSON
)

// A Row is one step of a migration that was done, or that was refused.
type Row struct {
	// Subject is the migration, Process one execution of its program.
	Subject string `json:"subject"`
	Process string `json:"process"`
	Step    int    `json:"step"`
	// Attempt and Token are 0 in a Job's Pod.
	Attempt int         `json:"attempt"`
	Token   fence.Token `json:"token"`
	Refused bool        `json:"refused"`
}
