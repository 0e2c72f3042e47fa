package fencehttp

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/singletonjob/operator/fence"
)

func TestRules(t *testing.T) {
	rules, err := NewRules([]Rule{
		{Path: "/ledger", Resource: "ledger"},
		{Path: "/open/", Unfenced: true},
		{Host: "*.books.example", Path: "/x", Resource: "books"},
		{Host: "any.example", FromHeader: true},
		{Host: "fd00::1", Resource: "address"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const refused = fence.Resource("refused")
	for target, want := range map[string]fence.Resource{
		"http://a/ledger":               "ledger",
		"http://a/ledger/":              "ledger",
		"http://a/ledger/1?x=/../":      "ledger",
		"http://a/%6cedger":             "ledger",
		"http://a/ledger;v=1/entries":   "ledger",
		"http://a/open":                 "",
		"http://a/open/ledger":          "",
		"http://b.books.example:81/x/y": "books",
		"http://B.Books.Example./x":     "books",
		"http://any.example/z":          "named",
		"http://any.example:8080/":      "named",
		"http://[fd00::1]/":             "address",
		"http://[fd00::1]:8080/":        "address",

		"http://a/ledgers":               refused,
		"http://a/":                      refused,
		"http://books.example/x":         refused,
		"http://any.example.evil/z":      refused,
		"http://a/open/../ledger":        refused,
		"http://a/open/%2e%2e/ledger":    refused,
		"http://a/open/..;/ledger":       refused,
		"http://a/open/..;a=b/ledger":    refused,
		"http://a/open/%2e%2e%3b/ledger": refused,
		"http://a/open/..%2fledger":      refused,
		"http://a/open%2fledger":         refused,
		"http://a/open/..%5cledger":      refused,
		"http://a/open/..%252fledger":    refused,
		"http://any.example//ledger":     refused,
		"http://any.example/./ledger":    refused,
		"http://any.example/LEDGER/1":    refused,
		"http://any.example/Open/1":      refused,
		"http://any.example/%00":         refused,
	} {
		request := httptest.NewRequest(http.MethodPost, target, nil)
		request.Header.Set(fence.HeaderResource, "named")
		got, fenced, err := rules.Resource(request)
		if err != nil {
			got = refused
		}
		if got != want || fenced != (want != "") {
			t.Errorf("%s: %q, fenced %v, %v; want %q", target, got, fenced, err, want)
		}
	}
	absent := httptest.NewRequest(http.MethodPost, "http://any.example/", nil)
	if _, _, err := rules.Resource(absent); err == nil {
		t.Error("a resource that is to be in the header, and is not, passed")
	}
}

func TestInvalidRules(t *testing.T) {
	for name, rule := range map[string]Rule{
		"nothing":        {},
		"two":            {Resource: "a", Unfenced: true},
		"a bad resource": {Resource: "a b"},
		"a port":         {Host: "a:80", Resource: "a"},
		"brackets":       {Host: "[::1]", Resource: "a"},
		"both":           {Host: "[::1]:80", Resource: "a"},
		"no address":     {Host: "1::2::3", Resource: "a"},
		"a longer form":  {Host: "0:0:0:0:0:0:0:1", Resource: "a"},
		"capitals":       {Host: "A", Resource: "a"},
		"a relative one": {Path: "ledger", Resource: "a"},
		"dots":           {Path: "/a/../b", Resource: "a"},
		"encoded":        {Path: "/a%20b", Resource: "a"},
		"a parameter":    {Path: "/a;b", Resource: "a"},
	} {
		if _, err := NewRules([]Rule{rule}); err == nil {
			t.Errorf("%s: %+v passed", name, rule)
		}
	}
	if _, err := NewRules(nil); err == nil {
		t.Error("no rules passed")
	}
}
