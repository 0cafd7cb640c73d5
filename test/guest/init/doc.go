// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Command init is process 1 of the test and demo guest.
//
// It exists so that a test, or a person at the console, can see from outside what the guest really got: it prints
// one-line markers with a fixed form ("guest: ...") for the Ignition payload, each disk, each network interface, the
// number of boots seen by the root disk, and for every later change of these. Then it gives a shell on the console.
//
// It must never run anywhere but as process 1 of a throw-away virtual machine: it mounts file systems, loads kernel
// modules and powers the machine off. It refuses to start under any other process id.
//
// Words on the kernel command line that it understands:
//
//	chp.dhcp                 ask for an address by DHCP on each network interface
//	chp.agent                run the QEMU guest agent, if the guest was built with it
//	chp.ignore_power_button  announce the power button but stay on, like a guest that is stuck
//
// Under the name of shutdown it is the program that the guest agent calls to end the guest.
package main
