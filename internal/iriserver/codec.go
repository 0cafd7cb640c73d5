// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that this one stands on
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// malformedField is the number of an unknown field, the highest there is, that carries why a request could not be
// decoded. gRPC itself would answer Internal; a request with invalid UTF-8 in a name is the client's fault, and the
// interceptor says so with the name of the field.
const malformedField = protowire.Number(1<<29 - 1)

// codec decodes requests like gRPC's own, but hands malformed ones on, marked.
type codec struct{ encoding.CodecV2 }

func newCodec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

// Unmarshal decodes a request or marks it.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	msg, ok := v.(proto.Message)
	if err == nil || !ok {
		return err
	}
	proto.Reset(msg)
	if field := invalidText(msg.ProtoReflect().Descriptor(), data.Materialize()); field != "" {
		err = fmt.Errorf("%s: is not valid UTF-8", field)
	}
	mark := protowire.AppendTag(nil, malformedField, protowire.BytesType)
	msg.ProtoReflect().SetUnknown(protowire.AppendString(mark, fmt.Sprint(err)))
	return nil
}

// invalidText returns the path of the first text in an encoded message that is not UTF-8, "" if there is none. The
// decoder itself does not say which field it was.
func invalidText(desc protoreflect.MessageDescriptor, raw []byte) string {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeField(raw)
		if n < 0 {
			return ""
		}
		value := raw[protowire.SizeTag(num):n]
		raw = raw[n:]
		field := desc.Fields().ByNumber(num)
		if field == nil || typ != protowire.BytesType {
			continue
		}
		body, m := protowire.ConsumeBytes(value)
		if m < 0 {
			return ""
		}
		name := string(field.Name())
		if field.Kind() == protoreflect.StringKind && !utf8.Valid(body) {
			return name
		}
		if field.Kind() == protoreflect.MessageKind {
			if below := invalidText(field.Message(), body); below != "" {
				return name + "." + below
			}
		}
	}
	return ""
}

// malformed returns why a request could not be decoded, "" if it could.
func malformed(req any) string {
	msg, ok := req.(proto.Message)
	if !ok {
		return ""
	}
	for raw := msg.ProtoReflect().GetUnknown(); len(raw) > 0; {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return ""
		}
		if num == malformedField && typ == protowire.BytesType {
			why, _ := protowire.ConsumeString(raw[n:])
			return why
		}
		skip := protowire.ConsumeFieldValue(num, typ, raw[n:])
		if skip < 0 {
			return ""
		}
		raw = raw[n+skip:]
	}
	return ""
}
