// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package apinet connects machines to the networks of ironcore-net: it declares a NetworkInterface object for each
// interface and gives the VMM the tap, or the function of the PCI bus, that the network's own controllers then name in
// the object's status. It exists so that any provider of virtual machines can be a node of an ironcore network.
//
// All reads are answered from a watch; a call waits for the API server at most when it changes an object. While the API
// server cannot be reached, or gives no access, interfaces are pending and guests run on.
//
// The package must never delete an object that does not carry the label of this provider and the name of this node,
// never take "the API server does not answer" for "there is no such object", never apply an immutable change over a
// living object, and never delete objects as leftovers that were made under another state directory.
package apinet
