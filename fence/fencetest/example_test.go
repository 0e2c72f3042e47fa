package fencetest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
)

// A takeover, and what the sink has to say about it.
func Example() {
	sink := &fencetest.Sink{}
	server := httptest.NewServer(sink.Handler())
	defer server.Close()

	ctx := context.Background()
	old := &fencetest.Writer{URL: server.URL, Resource: "default/billing", Token: 33, ID: "billing-0"}
	present := &fencetest.Writer{URL: server.URL, Resource: "default/billing", Token: 34, ID: "billing-1"}
	fmt.Println(old.Write(ctx), present.Write(ctx))
	fmt.Println(errors.Is(old.Write(ctx), fence.ErrStale)) // the old one wakes up

	report := sink.Report().Resource("default/billing")
	fmt.Printf("highest %d, accepted %d, refused %d, stale but accepted %d\n",
		report.Highest, report.Accepted, report.Refused, report.StaleAccepted)
	// Output:
	// <nil> <nil>
	// true
	// highest 34, accepted 2, refused 1, stale but accepted 0
}
