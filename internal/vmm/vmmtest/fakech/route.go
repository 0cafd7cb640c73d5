// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"errors"
	"strings"
)

// apiRoot prefixes every endpoint.
const apiRoot = "/api/v1/"

// endpoint is one entry of the API. Exactly one of get, put and body is set.
type endpoint struct {
	what string                                            // the text that heads its failures
	get  func(*vmm) ([]byte, *chainError)                  // GET
	put  func(*vmm) *chainError                            // PUT without a body
	body func(*vmm, *request) ([]byte, *chainError, error) // PUT with a body; error is a JSON error
	own  bool                                              // answers other methods with a text
}

// endpoints lists the API. vm.coredump is in debug builds only; migration and restore are not part of
// what the fake can do and answer as failures.
func endpoints() map[string]endpoint {
	m := map[string]endpoint{
		"vmm.ping":        {get: (*vmm).ping, own: true},
		"vmm.shutdown":    {what: "The VMM could not shutdown", put: (*vmm).vmmShutdown, own: true},
		"vm.info":         {what: "The VM info is not available", get: (*vmm).info, own: true},
		"vm.counters":     {what: "The VM info is not available", get: (*vmm).counters},
		"vm.create":       {what: "The VM could not be created", body: jsonCall((*vmm).create), own: true},
		"vm.boot":         {what: "The VM could not boot", put: (*vmm).boot},
		"vm.delete":       {what: "The VM could not be deleted", put: (*vmm).delete},
		"vm.shutdown":     {what: "The VM could not shutdown", put: (*vmm).shutdown},
		"vm.reboot":       {what: "The VM could not reboot", put: (*vmm).reboot},
		"vm.pause":        {what: "The VM could not be paused", put: (*vmm).pause},
		"vm.resume":       {what: "The VM could not resume", put: (*vmm).resume},
		"vm.power-button": {what: "Error triggering power button", put: (*vmm).powerButton},
		"vm.nmi":          {what: "Error triggering NMI", put: (*vmm).nmi},
		"vm.resize":       {what: "The VM could not be resized", body: jsonCall((*vmm).resize)},
		"vm.resize-disk":  {what: "The disk could not be resized", body: jsonCall((*vmm).resizeDisk)},
		"vm.resize-zone":  {what: "The memory zone could not be resized", body: jsonCall((*vmm).resizeZone)},
		"vm.remove-device": {
			what: "The device could not be removed from the VM", body: jsonCall((*vmm).removeDevice),
		},
		"vm.snapshot":          {what: "The VM could not be snapshotted", body: jsonCall((*vmm).snapshot)},
		"vm.restore":           {what: "The VM could not be restored", body: jsonCall((*vmm).restore)},
		"vm.send-migration":    {what: "Error dispatching the migration worker", body: jsonCall((*vmm).migrate)},
		"vm.receive-migration": {what: "Error receiving migration", body: jsonCall((*vmm).migrate)},
	}
	addEndpoints(m)
	return m
}

func addEndpoints(m map[string]endpoint) {
	add := func(name, what string, call func(*vmm, *request) ([]byte, *chainError, error)) {
		m[name] = endpoint{what: what + " could not be added to the VM", body: call}
	}
	add("vm.add-disk", "The disk", addCall(addDisk))
	add("vm.add-net", "The network device", addNetCall(addNet))
	add("vm.add-device", "The device", addCall(addVFIO))
	add("vm.add-user-device", "The user device", addCall(addUserDevice))
	add("vm.add-fs", "The fs", addCall(addFs))
	add("vm.add-generic-vhost-user", "The generic vhost-user device", addCall(addGenericVhostUser))
	add("vm.add-pmem", "The pmem device", addCall(addPmem))
	add("vm.add-vdpa", "The vDPA device", addCall(addVdpa))
	add("vm.add-vsock", "The vsock device", addCall(addVsock))
}

// jsonCall adapts a call with a JSON argument and no result.
func jsonCall[T any](call func(*vmm, *T) *chainError) func(*vmm, *request) ([]byte, *chainError, error) {
	return func(v *vmm, r *request) ([]byte, *chainError, error) {
		var arg T
		if err := decodeJSON(v.dialect, r.body, &arg); err != nil {
			return nil, nil, err
		}
		var failure *chainError
		v.do(func() { failure = call(v, &arg) })
		return nil, failure, nil
	}
}

// dispatch answers one request; it runs on the HTTP thread.
func (v *vmm) dispatch(r *request) outcome {
	name, ok := strings.CutPrefix(r.path(), apiRoot)
	ep, known := v.endpoints[name]
	if !ok || !known {
		return outcome{resp: response{status: 404, body: errorBody("Not Found")}}
	}
	v.record(r.method + " " + name)
	fault := v.faults.take(name)
	if out, done := v.faultBefore(fault); done {
		return out
	}
	out := outcome{resp: v.call(ep, r)}
	v.faultAfter(fault, &out)
	return out
}

func (v *vmm) call(ep endpoint, r *request) response {
	bad := response{status: 400, body: errorBody("Bad Request")}
	if r.method != "GET" && r.method != "PUT" && !ep.own {
		return response{status: 400}
	}
	var body []byte
	var failure *chainError
	switch {
	case ep.get != nil:
		if r.method != "GET" {
			return bad
		}
		v.do(func() { body, failure = ep.get(v) })
	case r.method != "PUT":
		return bad
	case ep.put != nil:
		if r.body != nil {
			return bad
		}
		v.do(func() { failure = ep.put(v) })
	case r.body == nil && ep.own:
		return response{status: 400}
	case r.body == nil:
		return bad
	default:
		var err error
		body, failure, err = ep.body(v, r)
		var syntax *decodeError
		if errors.As(err, &syntax) {
			return response{status: 400, body: errorBody("Failed to deserialize JSON", syntax.Error())}
		}
		if err != nil {
			return bad
		}
	}
	return v.result(ep, body, failure)
}

func (v *vmm) result(ep endpoint, body []byte, failure *chainError) response {
	if failure != nil {
		if failure.kind == kindTooMany {
			return response{status: 429, body: errorBody(failure.texts...)}
		}
		chain := failure.under("Error from API", ep.what)
		return response{status: v.dialect.status(chain), body: errorBody(chain.texts...)}
	}
	if body != nil {
		return response{status: 200, body: body}
	}
	if ep.what == "The VMM could not shutdown" {
		return response{status: 200}
	}
	return response{status: 204}
}
