// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package status is one page about the server, for a person who was woken at night: what runs here and why, what
// there is room for, and above all what does not go on, since when and for what reason. It exists so that the first
// question after an alert needs no query. It must never show what a guest or a volume is given (Ignition, secrets,
// annotations), need anything from elsewhere to be read, or grow with the number of machines.
package status
