module github.com/singletonjob/operator/test/lab/modules/pause

go 1.26.0
