// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"net/http"
)

// Paths of the two questions.
const (
	LivePath  = "/healthz"
	ReadyPath = "/readyz"
)

// Handler answers GET and HEAD of /healthz and /readyz: 200 or 503, and a Report in JSON that says why. The parameter
// "exclude" leaves a check out and may be given several times, as in Kubernetes' own servers.
func (r *Registry) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+LivePath, r.answer(Live))
	mux.HandleFunc("GET "+ReadyPath, r.answer(Ready))
	return mux
}

func (r *Registry) answer(purpose Purpose) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		report := r.Report(req.Context(), purpose, req.URL.Query()["exclude"]...)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !report.OK {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(report) // the asker may have gone
	}
}
