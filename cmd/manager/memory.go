package main

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strconv"
)

// memoryEnv holds the container's memory limit in bytes, as the chart has Kubernetes fill it in.
const memoryEnv = "MEMORY_LIMIT"

// heedMemoryLimit has the garbage collector work harder before the kernel ends the program: at nine tenths of the limit, since memory is
// also used by what it does not count. Who sets GOMEMLIMIT knows better.
func heedMemoryLimit() error {
	text := os.Getenv(memoryEnv)
	if text == "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	bytes, err := strconv.ParseInt(text, 10, 64)
	if err != nil || bytes <= 0 {
		return fmt.Errorf("%s %q is no number of bytes: unset it, or set it to the memory that the operator may use", memoryEnv, text)
	}
	const tenth = 10
	debug.SetMemoryLimit(max(1, min(bytes, math.MaxInt64/tenth)/tenth*(tenth-1)))
	return nil
}
