//! Calls of clients to the back end.

use serde::{Deserialize, Serialize};

use super::proxy::ProxyConfig;

/// `rpc`: calls of clients to the back end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcConfig {
    /// The default proxy for calls.
    pub proxy: ProxyConfig,
    /// Options of methods without a namespace.
    pub without_namespace: RpcNamespace,
    /// Namespaces with their options.
    pub namespaces: Vec<RpcNamespace>,
    /// The end of the namespace in a method name.
    pub namespace_boundary: String,
    /// A method that the server answers itself.
    pub ping: RpcPingConfig,
}

/// The method by which clients check the connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcPingConfig {
    /// Whether the server answers it.
    pub enabled: bool,
    /// Its name.
    pub method: String,
}

impl Default for RpcPingConfig {
    fn default() -> Self {
        Self { enabled: false, method: "ping".to_owned() }
    }
}

impl Default for RpcConfig {
    fn default() -> Self {
        Self {
            proxy: ProxyConfig::default(),
            without_namespace: RpcNamespace::default(),
            namespaces: Vec::new(),
            namespace_boundary: ":".to_owned(),
            ping: RpcPingConfig::default(),
        }
    }
}

/// A namespace of methods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcNamespace {
    /// The name of the namespace.
    pub name: String,
    /// Whether its calls are permitted.
    pub proxy_enabled: bool,
    /// The proxy for its calls; empty or `default`: `rpc.proxy`.
    pub proxy_name: String,
}

impl RpcConfig {
    /// The namespace of a method; `None` if it is not configured.
    pub fn namespace_of(&self, method: &str) -> Option<&RpcNamespace> {
        match method.split_once(self.namespace_boundary.as_str()) {
            None => Some(&self.without_namespace),
            Some((name, _)) => self.namespaces.iter().find(|namespace| namespace.name == name),
        }
    }
}
