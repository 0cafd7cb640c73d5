// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// manifestStore keeps the manifests of the handler, which has them in memory only, and gives them back at start.
type manifestStore struct {
	dir string
	mu  sync.Mutex // one change at a time, so that file and memory agree
}

type storedManifest struct {
	Path        string `json:"path"`
	ContentType string `json:"contentType"`
	Body        []byte `json:"body"`
}

// change passes a PUT or DELETE of a manifest on and, when that succeeded, makes the file follow.
func (m *manifestStore) change(inner http.Handler, w http.ResponseWriter, r *http.Request) {
	const manifestLimit = 4 << 20 // as in other registries
	body, err := io.ReadAll(io.LimitReader(r.Body, manifestLimit))
	if err != nil {
		http.Error(w, `{"errors":[{"code":"MANIFEST_INVALID"}]}`, http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer := &recordedResponse{header: http.Header{}}
	inner.ServeHTTP(answer, r)
	if answer.status/100 == 2 {
		stored := storedManifest{Path: r.URL.Path, ContentType: r.Header.Get("Content-Type"), Body: body}
		if err := m.follow(r.Method, stored); err != nil {
			http.Error(w, `{"errors":[{"code":"UNKNOWN"}]}`, http.StatusInternalServerError)
			return
		}
	}
	answer.writeTo(w)
}

func (m *manifestStore) follow(method string, s storedManifest) error {
	path := m.file(s.Path)
	if method == http.MethodDelete {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.dir, 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", raw, 0o640); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// file is a flat name, so that no repository name can lead out of the directory.
func (m *manifestStore) file(urlPath string) string {
	return filepath.Join(m.dir, base64.RawURLEncoding.EncodeToString([]byte(urlPath))+".json")
}

// replay puts stored manifests into a fresh handler. An index is refused before its parts are there, so what is
// refused is tried again as long as something else succeeds.
func (m *manifestStore) replay(inner http.Handler) error {
	files, err := filepath.Glob(filepath.Join(m.dir, "*.json"))
	if err != nil {
		return err
	}
	for len(files) > 0 {
		var refused []string
		for _, file := range files {
			ok, err := putStored(inner, file)
			if err != nil {
				return fmt.Errorf("restore manifest %s: %w", file, err)
			}
			if !ok {
				refused = append(refused, file)
			}
		}
		if len(refused) == len(files) {
			return fmt.Errorf("restore manifests: %s is refused: a part of it is missing", strings.Join(refused, ", "))
		}
		files = refused
	}
	return nil
}

func putStored(inner http.Handler, file string) (accepted bool, err error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return false, err
	}
	var s storedManifest
	if err := json.Unmarshal(raw, &s); err != nil {
		return false, err
	}
	answer := &recordedResponse{header: http.Header{}}
	inner.ServeHTTP(answer, &http.Request{
		Method: http.MethodPut, URL: &url.URL{Path: s.Path}, Header: http.Header{"Content-Type": {s.ContentType}},
		Body: io.NopCloser(bytes.NewReader(s.Body)),
	})
	return answer.status/100 == 2, nil
}

// recordedResponse holds an answer until it is known whether it may be given.
type recordedResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recordedResponse) Header() http.Header { return r.header }

func (r *recordedResponse) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recordedResponse) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}

func (r *recordedResponse) writeTo(w http.ResponseWriter) {
	for key, values := range r.header {
		w.Header()[key] = values
	}
	w.WriteHeader(r.status)
	// A client that has gone cannot be told.
	_, _ = w.Write(r.body.Bytes())
}
