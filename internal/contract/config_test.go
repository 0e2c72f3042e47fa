package contract

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/fence"
)

func valid() AgentConfig {
	return AgentConfig{
		Name: "job", RunID: "uid", TokenEnv: fence.EnvToken,
		LeaseDuration: Duration(15 * time.Second), RenewDeadline: Duration(10 * time.Second), RetryPeriod: Duration(2 * time.Second),
		GracePeriod: Duration(30 * time.Second), Port: DefaultPort,
	}
}

func TestConfigRoundTrip(t *testing.T) {
	want := valid()
	got, err := DecodeConfig(want.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*AgentConfig)
		want  string
	}{
		"no name":               {func(c *AgentConfig) { c.Name = "" }, "name is empty"},
		"no variable":           {func(c *AgentConfig) { c.TokenEnv = "" }, "tokenEnv"},
		"too long":              {func(c *AgentConfig) { c.LeaseDuration = Duration(2 * time.Hour) }, "leaseDuration 2h"},
		"half seconds":          {func(c *AgentConfig) { c.LeaseDuration = Duration(15500 * time.Millisecond) }, "whole number of seconds"},
		"no stop budget":        {func(c *AgentConfig) { c.RenewDeadline = Duration(14 * time.Second) }, "renewDeadline 14s leaves no time"},
		"no retry":              {func(c *AgentConfig) { c.RetryPeriod = 0 }, "retryPeriod 0s"},
		"no second attempt":     {func(c *AgentConfig) { c.RetryPeriod = c.RenewDeadline }, "at most 6.6"},
		"too short":             {func(c *AgentConfig) { c.LeaseDuration = Duration(2 * time.Second) }, "leaseDuration 2s"},
		"negative jitter":       {func(c *AgentConfig) { c.Jitter = -1 }, "jitter"},
		"negative lock delay":   {func(c *AgentConfig) { c.LockDelay = -1 }, "lockDelay"},
		"contradicting promise": {func(c *AgentConfig) { c.KeepRunning, c.LockDelay = true, 1 }, "cannot be combined"},
		"port":                  {func(c *AgentConfig) { c.Port = 70000 }, "port 70000"},
		"a probe of no way":     {func(c *AgentConfig) { c.Probes.Liveness = &Probe{} }, "probes.liveness: 0 of exec"},
		"a probe that spins":    {func(c *AgentConfig) { c.Probes.Readiness = &Probe{Check: Check{Exec: []string{"x"}}} }, "probes.readiness: period 0s"},
		"a probe of no port":    {func(c *AgentConfig) { c.Probes.Startup = &Probe{Check: Check{GRPC: &GRPC{}}} }, "probes.startup: port 0"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := valid()
			c.spoil(&cfg)
			if _, err := DecodeConfig(cfg.Encode()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
	for text, want := range map[string]string{
		"":                      ConfigEnv + " is not set",
		"{":                     "not a valid configuration",
		`{"nmae":"x"}`:          "nmae",
		`{"leaseDuration":"x"}`: "duration",
	} {
		if _, err := DecodeConfig(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q in it", text, err, want)
		}
	}
}
