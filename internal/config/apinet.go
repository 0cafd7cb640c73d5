// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import "strconv"

// NetworkAPINet connects machines to ironcore-net. In libvirt-provider's spelling, as are its nine flags.
const NetworkAPINet = "apinet"

// APINet is how the API server of ironcore-net is reached.
type APINet struct {
	NodeName                  string
	Kubeconfig                string
	KubeconfigSecretName      string
	KubeconfigSecretNamespace string
	BootstrapKubeconfig       string
	RotateCertificates        bool
	EgressSelectorConfig      string
	QPS                       float64 // requests a second; 0 = client-go's 5
	Burst                     int     // 0 = client-go's 10
}

func truth(place func(*Config) *bool) codec {
	return scalar[bool]{place, func(s string) (bool, error) {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return false, badValue("", "%q is neither true nor false", s)
		}
		return b, nil
	}, strconv.FormatBool}
}

func apinetFields() []Field {
	return []Field{
		{
			Path: "network.apinet.nodeName", Flag: "apinet-node-name", Type: TypeString, Empty: "needed with network.plugin apinet",
			Doc:   "Name of this host in ironcore-net.",
			codec: text(func(c *Config) *string { return &c.Network.APINet.NodeName }, optionalText(label)),
		},
		{
			Path: "network.apinet.kubeconfig", Flag: "apinet-kubeconfig", Type: TypePath,
			Empty: "$KUBECONFIG, the cluster this runs in, or ~/.kube/config",
			Doc:   "Kubeconfig for the API server of ironcore-net. With a bootstrap kubeconfig or rotation it is also written.",
			codec: text(func(c *Config) *string { return &c.Network.APINet.Kubeconfig }, absolute),
		},
		{
			Path: "network.apinet.kubeconfigSecretName", Flag: "apinet-kubeconfig-secret-name", Type: TypeString, Empty: "a file is used",
			Doc:   "Secret, key `kubeconfig`, that takes the place of the kubeconfig file.",
			codec: text(func(c *Config) *string { return &c.Network.APINet.KubeconfigSecretName }, optionalText(label)),
		},
		{
			Path: "network.apinet.kubeconfigSecretNamespace", Flag: "apinet-kubeconfig-secret-namespace", Type: TypeString,
			Empty: "$POD_NAMESPACE, that of the service account, or default",
			Doc:   "Namespace of that Secret.",
			codec: text(func(c *Config) *string { return &c.Network.APINet.KubeconfigSecretNamespace }, optionalText(label)),
		},
		{
			Path: "network.apinet.bootstrapKubeconfig", Flag: "apinet-bootstrap-kubeconfig", Type: TypePath, Empty: "no certificate is asked for",
			Doc:   "Kubeconfig with a bootstrap token, to ask for a client certificate where there is no good one.",
			codec: text(func(c *Config) *string { return &c.Network.APINet.BootstrapKubeconfig }, absolute),
		},
		{
			Path: "network.apinet.rotateCertificates", Flag: "apinet-rotate-certificates", Type: TypeBool, Limits: "needs a kubeconfig to be kept",
			Doc:   "Renew the client certificate at 70 to 90 % of its life, without a restart.",
			codec: truth(func(c *Config) *bool { return &c.Network.APINet.RotateCertificates }),
		},
		{
			Path: "network.apinet.egressSelectorConfig", Flag: "apinet-egress-selector-config", Type: TypePath, Empty: "the API server is reached directly",
			Doc:   "File of kind EgressSelectorConfiguration; its `cluster` entry, Direct or HTTPConnect, is the way to the API server.",
			codec: text(func(c *Config) *string { return &c.Network.APINet.EgressSelectorConfig }, absolute),
		},
		{
			Path: "network.apinet.qps", Flag: "apinet-qps", Type: TypeRatio, Limits: "0 to 10000; 0 is client-go's default of 5",
			Doc:   "Greatest number of requests a second to the API server.",
			codec: ratio(func(c *Config) *float64 { return &c.Network.APINet.QPS }, 0, 10000),
		},
		{
			Path: "network.apinet.burst", Flag: "apinet-burst", Type: TypeInt, Limits: "0 to 10000; 0 is client-go's default of 10",
			Doc:   "Requests that may come at once beyond that rate.",
			codec: integer(func(c *Config) *int { return &c.Network.APINet.Burst }, 0, 10000),
		},
	}
}

// optionalText lets the empty value through.
func optionalText(check func(string) error) func(string) error {
	return func(s string) error {
		if s == "" {
			return nil
		}
		return check(s)
	}
}

func label(s string) error {
	if !networkName.MatchString(s) {
		return badValue("", "%q is not made of lower-case letters, digits, \"-\" and \".\"", s)
	}
	return nil
}

// apinet judges the access to ironcore-net, whether it is in use or kept to clean up.
func (r *loading) apinet() {
	const node, file, secret, space = "network.apinet.nodeName", "network.apinet.kubeconfig", "network.apinet.kubeconfigSecretName", "network.apinet.kubeconfigSecretNamespace"
	const bootstrap, rotate = "network.apinet.bootstrapKubeconfig", "network.apinet.rotateCertificates"
	if !r.sound("network.plugin", node, file, secret, space, bootstrap, rotate) {
		return
	}
	a := r.cfg.Network.APINet
	if r.cfg.Network.Plugin == NetworkAPINet && a.NodeName == "" {
		r.fail("network.plugin", "set network.apinet.nodeName", "apinet needs the name of this host in ironcore-net")
	}
	if a.Kubeconfig != "" && a.KubeconfigSecretName != "" {
		r.fail(secret, "keep one of the two", "contradicts network.apinet.kubeconfig: a kubeconfig is kept in one place")
	}
	if a.KubeconfigSecretNamespace != "" && a.KubeconfigSecretName == "" {
		r.fail(space, "set network.apinet.kubeconfigSecretName", "is the namespace of no Secret")
	}
	if a.Kubeconfig == "" && a.KubeconfigSecretName == "" {
		const place, message = "set network.apinet.kubeconfig or network.apinet.kubeconfigSecretName", "the client certificate has no place to be kept"
		if a.BootstrapKubeconfig != "" {
			r.fail(bootstrap, place, message)
		}
		if a.RotateCertificates {
			r.fail(rotate, place, message)
		}
	}
	if a != (APINet{}) && a.NodeName == "" && r.cfg.Network.Plugin != NetworkAPINet {
		r.warn("network.apinet", "set network.apinet.nodeName", "has no effect without it")
	}
}
