//go:build linux

package kubelease

import (
	"os"
	"testing"

	"github.com/singletonjob/operator/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }
