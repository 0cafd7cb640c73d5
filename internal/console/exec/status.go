// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// status is the part of Kubernetes' metav1.Status that clients of a stream look at.
type status struct {
	Metadata struct{} `json:"metadata"`
	Status   string   `json:"status"`
	Message  string   `json:"message,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Code     int      `json:"code,omitempty"`
}

// reasons are metav1.StatusReason and HTTP code of a kind of failure.
var reasons = map[machine.Kind]struct {
	reason string
	code   int
}{
	machine.NotFound:           {"NotFound", http.StatusNotFound},
	machine.FailedPrecondition: {"Conflict", http.StatusConflict},
	machine.Unavailable:        {"ServiceUnavailable", http.StatusServiceUnavailable},
}

var errStopping = machine.Errorf(machine.Unavailable, "the provider is stopping; the guest goes on")

// ending is what the error stream says at the end of a session. From version 4 of the stream protocol on it is a status
// in JSON, before that the text of a failure, and nothing after success.
func ending(version int, err error) []byte {
	if errors.Is(err, context.Canceled) {
		err = errStopping
	}
	if version < 4 {
		if err == nil {
			return nil
		}
		return []byte(err.Error())
	}
	s := status{Status: "Success"}
	if err != nil {
		s = status{Status: "Failure", Message: err.Error(), Reason: "InternalError", Code: http.StatusInternalServerError}
		if r, ok := reasons[machine.KindOf(err)]; ok {
			s.Reason, s.Code = r.reason, r.code
		}
	}
	raw, _ := json.Marshal(s) // strings and a number
	return raw
}
