package main

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strconv"
)

// memoryEnv is the variable with the container's memory limit in bytes. The chart has Kubernetes set it.
const memoryEnv = "MEMORY_LIMIT"

// gcPercent is how much of its memory the operator may fill with garbage before it is collected. Nearly all of it are objects in caches,
// which make little garbage. With Go's 100 it would use twice what the caches need.
const gcPercent = 25

// collectOften makes the garbage collector run often. A GOGC that is set takes precedence.
func collectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// heedMemoryLimit makes the garbage collector work harder at nine tenths of the limit, before the kernel ends the program. The rest
// is for memory that the runtime does not count. A GOMEMLIMIT that is set takes precedence.
func heedMemoryLimit() error {
	text := os.Getenv(memoryEnv)
	if text == "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	bytes, err := strconv.ParseInt(text, 10, 64)
	if err != nil || bytes <= 0 {
		return fmt.Errorf("%s %q is not a number of bytes: unset it, or set it to the memory that the operator may use", memoryEnv, text)
	}
	const tenth = 10
	debug.SetMemoryLimit(max(1, min(bytes, math.MaxInt64/tenth)/tenth*(tenth-1)))
	return nil
}
