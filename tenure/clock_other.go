//go:build !linux

package tenure

import "errors"

func now() int64 { return 0 }

func supported() error { return errors.New("the agent runs only on Linux") }
