// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// quantityForm is stricter than Kubernetes' grammar: two digits of exponent cover every
// 64-bit number, and a longer exponent makes the arbitrary-precision arithmetic run for minutes.
var quantityForm = regexp.MustCompile(`^[+-]?(\d{1,24}(\.\d{0,12})?|\.\d{1,12})(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d{1,2})?$`)

// byteUnit finds the habits "512MB", "512MiB" and "512mb", which the grammar does not know.
var byteUnit = regexp.MustCompile(`^(\d+) ?([kmgtKMGT])(i?)[bB]?$`)

// ParseQuantity reads a Kubernetes quantity ("2", "500m", "4Gi", "1e3") and rounds it up to
// a whole number. Values beyond 64 bits are an error, negative ones are not.
func ParseQuantity(text string) (int64, error) {
	q, err := quantity(text)
	if err != nil {
		return 0, err
	}
	limit := resource.NewQuantity(math.MaxInt64, resource.DecimalSI)
	low := resource.NewQuantity(-math.MaxInt64, resource.DecimalSI) // Kubernetes cuts greater amounts to these two
	if q.Cmp(*limit) >= 0 || q.Cmp(*low) <= 0 {
		return 0, fmt.Errorf("%q does not fit 64 bits", text)
	}
	return q.Value(), nil
}

// ParseBytes reads a size in bytes as a Kubernetes quantity ("512Mi", "1G", "4096").
// Fractions of a byte and negative sizes are errors.
func ParseBytes(text string) (int64, error) {
	n, err := ParseQuantity(text)
	if err != nil {
		return 0, err
	}
	q, err := quantity(text)
	if err != nil {
		return 0, err
	}
	if q.Sign() < 0 {
		return 0, fmt.Errorf("%q is negative", text)
	}
	if q.Cmp(*resource.NewQuantity(n, resource.BinarySI)) != 0 {
		return 0, fmt.Errorf("%q is not a whole number of bytes", text)
	}
	return n, nil
}

// Amount is a number of bytes, or a share of something in percent; at most one of the two is set.
type Amount struct {
	Bytes   int64
	Percent int
}

// percentForm is a share in percent.
var percentForm = regexp.MustCompile(`^\d{1,3}%$`)

// ParseAmount reads a size in bytes as ParseBytes does, or a whole number of percent ("20%").
func ParseAmount(text string) (Amount, error) {
	share, found := strings.CutSuffix(text, "%")
	if !found {
		n, err := ParseBytes(text)
		return Amount{Bytes: n}, err
	}
	if !percentForm.MatchString(text) {
		return Amount{}, fmt.Errorf("%q is not a share such as 20%%", clip(text))
	}
	n, err := strconv.Atoi(share)
	return Amount{Percent: n}, err
}

// String is the notation that ParseAmount reads back; nothing for none.
func (a Amount) String() string {
	switch {
	case a.Percent > 0:
		return strconv.Itoa(a.Percent) + "%"
	case a.Bytes > 0:
		return FormatBytes(a.Bytes)
	}
	return ""
}

// FormatBytes is the shortest exact notation that ParseBytes reads back.
func FormatBytes(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// SuggestQuantity turns "512MB" into the two notations that might have been meant.
func SuggestQuantity(text string) string {
	m := byteUnit.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	unit := strings.ToUpper(m[2])
	binary := m[1] + unit + "i"
	if m[3] == "i" {
		return fmt.Sprintf("write %s", binary)
	}
	if unit == "K" {
		unit = "k"
	}
	return fmt.Sprintf("write %s (powers of 1024) or %s%s (powers of 1000)", binary, m[1], unit)
}

func quantity(text string) (resource.Quantity, error) {
	if !quantityForm.MatchString(text) {
		return resource.Quantity{}, fmt.Errorf("%q is not a quantity such as 4, 500m or 512Mi", clip(text))
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return resource.Quantity{}, fmt.Errorf("%q is not a quantity such as 4, 500m or 512Mi", text)
	}
	return q, nil
}

// clip keeps a message readable when someone puts a book into a value.
func clip(text string) string {
	const longest = 60
	if r := []rune(text); len(r) > longest {
		return string(r[:longest]) + "…"
	}
	return text
}
