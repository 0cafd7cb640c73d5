// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package apinet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// api is an API server that knows NetworkInterface objects alone, as strict about them as the real one.
type api struct {
	t      *testing.T
	server *httptest.Server

	mu        sync.Mutex
	version   int
	objects   map[string]*unstructured.Unstructured // by namespace/name
	finalizer bool                                  // deleted objects stay until finish
	forbidden bool
	hidden    bool // nobody may list or watch
	obliging  bool // objects become ready by themselves, each with a tap
	writes    int
	log       []event
	more      chan struct{} // closed when log grows
	cut       chan struct{} // closed to end all watches
}

type event struct {
	version int
	kind    string
	object  map[string]any
}

const collection = "/apis/core.apinet.ironcore.dev/v1alpha1"

func newAPI(t *testing.T) *api {
	a := &api{t: t, objects: map[string]*unstructured.Unstructured{}, more: make(chan struct{}), cut: make(chan struct{}), version: 1}
	a.server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() { a.endWatches(); a.server.Close() })
	return a
}

// Connect makes the server an Access.
func (a *api) Connect(context.Context) (dynamic.Interface, error) {
	return dynamic.NewForConfig(&rest.Config{Host: a.server.URL, QPS: -1})
}

func (a *api) Err() error { return nil }

func (a *api) endWatches() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.cut)
	a.cut = make(chan struct{})
}

func status(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code,
	})
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	path := strings.Trim(strings.TrimPrefix(r.URL.Path, collection), "/")
	parts := strings.Split(path, "/")
	a.mu.Lock()
	hidden := a.hidden
	a.mu.Unlock()
	switch {
	case path == "networkinterfaces" && hidden:
		status(w, http.StatusForbidden, "Forbidden", "networkinterfaces is forbidden")
	case path == "networkinterfaces" && r.URL.Query().Get("watch") != "":
		a.watch(w, r)
	case path == "networkinterfaces":
		a.list(w)
	case len(parts) == 4 && r.Method == http.MethodPatch:
		a.apply(w, r, parts[1]+"/"+parts[3])
	case len(parts) == 4 && r.Method == http.MethodDelete:
		a.delete(w, r, parts[1]+"/"+parts[3])
	case len(parts) == 4:
		a.mu.Lock()
		defer a.mu.Unlock()
		if o := a.objects[parts[1]+"/"+parts[3]]; o != nil {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(o.Object)
			return
		}
		status(w, http.StatusNotFound, "NotFound", "not found")
	default:
		status(w, http.StatusNotFound, "NotFound", r.URL.Path)
	}
}

func (a *api) list(w http.ResponseWriter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []any{}
	for _, o := range a.objects {
		items = append(items, o.Object)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "NetworkInterfaceList", "apiVersion": resource.GroupVersion().String(),
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items,
	})
}

func (a *api) watch(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		status(w, http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is forbidden")
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	a.mu.Lock()
	cut := a.cut
	a.mu.Unlock()
	for {
		a.mu.Lock()
		var send []event
		for _, e := range a.log {
			if e.version > from {
				send = append(send, e)
				from = e.version
			}
		}
		more := a.more
		a.mu.Unlock()
		for _, e := range send {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": e.kind, "object": e.object})
		}
		w.(http.Flusher).Flush()
		select {
		case <-more:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// put stores an object and tells the watchers; it must be called with the lock held.
func (a *api) put(kind string, o *unstructured.Unstructured) {
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	key := o.GetNamespace() + "/" + o.GetName()
	a.objects[key] = o
	if kind == "DELETED" {
		delete(a.objects, key)
	}
	a.log = append(a.log, event{version: a.version, kind: kind, object: o.DeepCopy().Object})
	close(a.more)
	a.more = make(chan struct{})
	if a.obliging && kind == "ADDED" {
		next := o.DeepCopy()
		next.Object["status"] = map[string]any{"state": "Ready", "tapDevice": map[string]any{"name": "mtap" + strconv.Itoa(a.version)}}
		a.put("MODIFIED", next)
	}
}

func (a *api) apply(w http.ResponseWriter, r *http.Request, key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes++
	o := &unstructured.Unstructured{}
	if err := json.NewDecoder(r.Body).Decode(&o.Object); err != nil {
		status(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	old := a.objects[key]
	switch {
	case a.forbidden:
		status(w, http.StatusForbidden, "Forbidden", "networkinterfaces is forbidden")
		return
	case old == nil:
		o.SetUID(types.UID("uid-" + strconv.Itoa(a.version)))
		a.put("ADDED", o)
	case fmt.Sprint(old.Object["spec"]) != fmt.Sprint(o.Object["spec"]):
		status(w, http.StatusUnprocessableEntity, "Invalid", "spec: field is immutable")
		return
	default:
		o = old
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o.Object)
}

func (a *api) delete(w http.ResponseWriter, r *http.Request, key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes++
	var options struct {
		Preconditions struct{ UID string }
	}
	_ = json.NewDecoder(r.Body).Decode(&options)
	o := a.objects[key]
	switch {
	case o == nil:
		status(w, http.StatusNotFound, "NotFound", "not found")
		return
	case options.Preconditions.UID != string(o.GetUID()):
		status(w, http.StatusConflict, "Conflict", "the UID in the precondition does not match")
		return
	}
	o = o.DeepCopy()
	if a.finalizer {
		_ = unstructured.SetNestedField(o.Object, time.Now().UTC().Format(time.RFC3339), "metadata", "deletionTimestamp")
		a.put("MODIFIED", o)
	} else {
		a.put("DELETED", o)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o.Object)
}

// finish lets deleted objects go.
func (a *api) finish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.objects {
		if o.GetDeletionTimestamp() != nil {
			a.put("DELETED", o.DeepCopy())
		}
	}
}

// report sets the status of the one object there is.
func (a *api) report(fields map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.objects) != 1 {
		a.t.Fatalf("%d objects, want one", len(a.objects))
	}
	for _, o := range a.objects {
		o = o.DeepCopy()
		o.Object["status"] = fields
		a.put("MODIFIED", o)
	}
}

func (a *api) only() *unstructured.Unstructured {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.objects) != 1 {
		a.t.Fatalf("%d objects, want one", len(a.objects))
	}
	for _, o := range a.objects {
		return o.DeepCopy()
	}
	return nil
}

func (a *api) count() (objects, writes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.objects), a.writes
}

// noAccess is an Access that never comes.
type noAccess struct{}

func (noAccess) Connect(ctx context.Context) (dynamic.Interface, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (noAccess) Err() error {
	return errors.New("certificate signing request csr-x was neither approved")
}
