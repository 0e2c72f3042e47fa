package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/singletonjob/operator/fence/fencehttp"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

type overHTTP struct {
	url    string
	client *http.Client
}

func openHTTP(t offer.Target) *overHTTP {
	base := &http.Transport{}
	h := &overHTTP{url: t.Address + "/entries/" + string(t.Log), client: &http.Client{Transport: base}}
	if t.Fenced {
		h.client.Transport = &fencehttp.Transport{Token: t.Token, Resource: t.Log, Base: base}
	}
	return h
}

func (h *overHTTP) Write(ctx context.Context, text string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, strings.NewReader(text))
	if err != nil {
		return err
	}
	response, err := h.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if err := fencehttp.Check(response); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", response.Status)
	}
	return nil
}
