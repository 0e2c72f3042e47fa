// Package vectors has the cases of the fence's rules, as the files beside it hold them for other languages.
package vectors

import "embed"

// Files are tokens.json, resources.json and gate.json.
//
//go:embed *.json
var Files embed.FS
