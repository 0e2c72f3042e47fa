//go:build linux

package kubelease

import (
	"os"
	"testing"

	"github.com/singletonjob/operator/test/apiserver"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }
