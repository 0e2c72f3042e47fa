//go:build !unix

package main

import "os"

// unread does nothing here: it needs pipes that report a lost reader.
func unread(*os.File, func()) {}
