// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestErrorsKeepTheirKindAndCause(t *testing.T) {
	for name, err := range map[string]error{
		"errorf":  Errorf(Exhausted, "write: %w", io.ErrShortWrite),
		"wrap":    Wrap(Exhausted, io.ErrShortWrite, "write"),
		"wrapped": fmt.Errorf("step: %w", Wrap(Exhausted, io.ErrShortWrite, "write")),
	} {
		if !IsKind(err, Exhausted) || !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%s: kind %s, %v", name, KindOf(err), err)
		}
		if n := strings.Count(err.Error(), io.ErrShortWrite.Error()); n != 1 {
			t.Errorf("%s tells its cause %d times: %v", name, n, err)
		}
	}
	if Wrap(Invalid, nil, "x") != nil || IsKind(nil, Unknown) || KindOf(io.EOF) != Unknown {
		t.Error("nothing is an error of no kind")
	}
	if got := InvalidField("spec.x", "is %d", 7).Error(); got != "spec.x: is 7" {
		t.Errorf("field: %q", got)
	}
}

func TestNamesThatCouldLeaveTheirDirectoryAreRefused(t *testing.T) {
	for _, name := range []string{"a", "root", "a-b.c", "0", strings.Repeat("a", 63)} {
		if err := ValidateName("f", name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "../x", "A", "a b", "-a", "a-", "a\x00", "ä", strings.Repeat("a", 64)} {
		if err := ValidateName("f", name); !IsKind(err, Invalid) || !strings.HasPrefix(err.Error(), "f: ") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestIdentifiersFollowFromTheMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id, name := rapid.String().Draw(t, "id"), rapid.String().Draw(t, "name")
		mac := MAC(id, name)
		var first byte
		if _, err := fmt.Sscanf(mac, "%02x:", &first); err != nil || first&3 != 2 || len(mac) != 17 {
			t.Fatalf("%s is no local unicast address", mac)
		}
		serial := Serial(id, name, rapid.StringMatching(`[a-z]{0,9}`).Draw(t, "device"))
		if len(serial) > 20 || mac != MAC(id, name) {
			t.Fatalf("serial %q, address %q", serial, mac)
		}
	})
	// The digits are those of libvirt-provider for the same machine and disk.
	if got := Serial("machine", "disk", "oda"); got != "oda-CE5B1DBB0BEF6D8F" {
		t.Errorf("serial %q", got)
	}
}

func TestConditionsMoveOnlyWhenTheirStatusDoes(t *testing.T) {
	var r Record
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	if !r.SetCondition(Condition{Type: "B", Status: ConditionFalse, LastTransition: at(1)}) {
		t.Error("a new condition is a change")
	}
	r.SetCondition(Condition{Type: "A", Status: ConditionTrue, LastTransition: at(2)})
	r.SetCondition(Condition{Type: "C", Status: ConditionTrue, LastTransition: at(3)})
	if r.SetCondition(Condition{Type: "B", Status: ConditionFalse, LastTransition: at(9)}) {
		t.Error("the same condition is no change")
	}
	r.SetCondition(Condition{Type: "C", Status: ConditionFalse, LastTransition: at(9)})
	var got []string
	for _, c := range r.Conditions {
		got = append(got, fmt.Sprint(c.Type, c.LastTransition.Unix()))
	}
	if diff := cmp.Diff([]string{"A2", "B1", "C9"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestACloneSharesNothing fills every field, by reflection so that none is forgotten, and spoils the copy.
func TestACloneSharesNothing(t *testing.T) {
	m := &Machine{}
	fill(reflect.ValueOf(m).Elem())
	before, _ := json.Marshal(m)
	c := m.Clone()
	if diff := cmp.Diff(m, c); diff != "" {
		t.Fatalf("the copy differs: %s", diff)
	}
	spoil(reflect.ValueOf(c).Elem())
	if after, _ := json.Marshal(m); string(after) != string(before) {
		t.Errorf("the original changed:\n%s\n%s", before, after)
	}
}

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		if _, ok := v.Interface().(time.Time); ok {
			v.Set(reflect.ValueOf(time.Unix(1, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64, reflect.Uint8:
		v.SetUint(1)
	}
}

// spoil changes what a shallow copy would share.
func spoil(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		spoil(v.Elem())
	case reflect.Struct:
		if _, ok := v.Interface().(time.Time); ok {
			v.Set(reflect.ValueOf(time.Unix(2, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			spoil(v.Field(i))
		}
	case reflect.Slice:
		spoil(v.Index(0))
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if v.Type().Elem().Kind() == reflect.Slice {
				spoil(v.MapIndex(key))
			}
			v.SetMapIndex(key, reflect.Value{})
		}
	case reflect.String:
		v.SetString("spoilt")
	case reflect.Bool:
		v.SetBool(false)
	case reflect.Int, reflect.Int64:
		v.SetInt(2)
	case reflect.Uint64, reflect.Uint8:
		v.SetUint(2)
	}
}

func TestAMachineThatItsGuestTurnedOffStaysOffWhateverElseOfItChanges(t *testing.T) {
	for _, created := range []int64{0, 1} { // 0 is one older than that field
		m := Machine{Desired: Desired{Power: PowerOn, Generation: 1, PowerGeneration: created}}
		m.Desired.Repower(PowerOff)
		m.Desired.Repower(PowerOn)
		if created == 0 {
			m.Desired.PowerGeneration = 0
		}
		m.Record.KeptOff = m.Desired.Generation
		m.Desired.Respec()
		m.Desired.Respec()
		if !m.IsKeptOff() {
			t.Errorf("a change of the spec turned the machine on: %+v", m)
		}
		m.Desired.Repower(PowerOn)
		if m.IsKeptOff() {
			t.Errorf("the machine cannot be turned on: %+v", m)
		}
		m.Desired.Respec()
		if m.IsKeptOff() {
			t.Errorf("a change of the spec turned the machine off: %+v", m)
		}
	}
}
