// Package vectors embeds the test cases for the fence's rules. Implementations in other languages read the same files.
package vectors

import "embed"

// Files are tokens.json, resources.json and gate.json.
//
//go:embed *.json
var Files embed.FS
