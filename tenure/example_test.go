package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/singletonjob/operator/tenure"
)

func ExampleCurrent() {
	ctx := context.Background()
	t, err := tenure.Current(ctx)
	switch {
	case errors.Is(err, tenure.ErrNoTenure):
		log.Fatal(err) // this is a standby, or a process of an earlier tenure
	case err != nil:
		log.Fatal(err) // no agent answers; the error names the remedy
	}
	fmt.Println("tenure of", t.Name, "with token", t.Token)
}

// Check the time left before a step that must not be interrupted. The sink still checks the token.
func ExampleTenure_Check() {
	ctx := context.Background()
	t, err := tenure.Current(ctx)
	if err != nil {
		log.Fatal(err)
	}
	left, err := t.Check(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if left < 5*time.Second {
		log.Fatalf("%v is too little for the next step", left)
	}
	fmt.Println("one more step with token", t.Token)
}

// This work needs two seconds for an orderly stop.
func ExampleTenure_Context() {
	t, err := tenure.Current(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := t.Context(context.Background(), 2*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		fmt.Println("step with token", t.Token)
	}
	fmt.Println("stopped:", context.Cause(ctx))
}

func ExampleAgent_Ask() {
	s, err := tenure.Here().Ask(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s of %s/%s: %s, %v left\n", s.Pod, s.Namespace, s.Name, s.Phase, s.Left())
}
