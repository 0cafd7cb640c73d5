// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	_ "embed" // the page's template
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"
)

// Path is where the page is served.
const Path = "/statusz"

//go:embed page.html
var pageText string

// Handler answers GET of /statusz: a page, or JSON when that is asked for by "?format=json" or the Accept header.
func (s *Server) Handler() (http.Handler, error) {
	page, err := template.New("page").Funcs(template.FuncMap{
		"size": size,
		"at":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"ago":  func(now, t time.Time) string { return now.Sub(t).Round(time.Second).String() },
	}).Parse(pageText)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		var body bytes.Buffer
		var err error
		if wantsJSON(r) {
			h.Set("Content-Type", "application/json")
			enc := json.NewEncoder(&body)
			enc.SetIndent("", "  ")
			err = enc.Encode(s.Page(r.Context()))
		} else {
			h.Set("Content-Type", "text/html; charset=utf-8")
			err = page.Execute(&body, s.Page(r.Context()))
		}
		if err != nil {
			http.Error(w, "make the page: "+err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(body.Bytes()) // the asker may have gone
	}), nil
}

// size is for a person: 23.04 GiB. The exact number of bytes is in the JSON.
func size(n int64) string {
	value, unit := float64(n)/(1<<20), "MiB"
	if value >= 1024 {
		value, unit = value/1024, "GiB"
	}
	return fmt.Sprintf("%.4g %s", value, unit)
}

func wantsJSON(r *http.Request) bool {
	if format := r.URL.Query().Get("format"); format != "" {
		return format == "json"
	}
	accept := r.Header.Get("Accept")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}
