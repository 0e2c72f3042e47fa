module github.com/singletonjob/operator/fence/fencepgx

go 1.26.8

replace github.com/singletonjob/operator => ../../

require (
	github.com/jackc/pgx/v5 v5.12.0
	github.com/singletonjob/operator v0.0.0-00010101000000-000000000000
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	golang.org/x/text v0.43.0 // indirect
)
