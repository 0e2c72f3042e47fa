//go:build linux

package faultproxy

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Request is one that reached the proxy, whatever became of it.
type Request struct {
	Time   time.Time
	Method string
	Path   string
	Query  url.Values
	Watch  bool
	Header http.Header
	// Pod is the pod whose service-account token the client presents, if it is bound to one. The token is not verified.
	Pod string
}

func describe(r *http.Request) Request {
	return Request{Time: time.Now(), Method: r.Method, Path: r.URL.Path, Query: r.URL.Query(), Watch: isWatch(r), Header: r.Header.Clone(), Pod: podOf(r)}
}

// Match chooses requests.
type Match func(*http.Request) bool

// Method matches requests with one of these methods.
func Method(methods ...string) Match {
	return func(r *http.Request) bool { return slices.Contains(methods, r.Method) }
}

// PathHas matches requests whose path contains part.
func PathHas(part string) Match {
	return func(r *http.Request) bool { return strings.Contains(r.URL.Path, part) }
}

// Watches matches watches.
func Watches() Match { return isWatch }

// FromPod matches requests that present a token bound to the pod called name.
func FromPod(name string) Match { return func(r *http.Request) bool { return podOf(r) == name } }

// Times matches the first n requests that all of is match. A stalled watch is matched again and again: not for StallWatch.
func Times(n int, is ...Match) Match {
	left := make(chan struct{}, n)
	for range n {
		left <- struct{}{}
	}
	return func(r *http.Request) bool {
		for _, m := range is {
			if !m(r) {
				return false
			}
		}
		select {
		case <-left:
			return true
		default:
			return false
		}
	}
}

func isWatch(r *http.Request) bool {
	watch := r.URL.Query().Get("watch")
	return r.Method == http.MethodGet && (watch == "true" || watch == "1")
}

func podOf(r *http.Request) string {
	token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	parts := strings.Split(token, ".")
	if !isBearer || len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Kubernetes struct {
			Pod struct {
				Name string `json:"name"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return claims.Kubernetes.Pod.Name
}
