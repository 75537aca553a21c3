//! Connections of clients, only to addresses that are allowed.

use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

use crate::addresses::Addresses;

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Resolves names with the operating system, and refuses a name with an address that is not
/// allowed. A connection uses the addresses that were checked.
#[derive(Clone)]
pub struct Resolver {
    system: GaiResolver,
    addresses: Addresses,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Answer<Self::Response, io::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let addresses = self.addresses;
        let resolving = self.system.call(name.clone());
        Box::pin(async move {
            let found: Vec<SocketAddr> = resolving.await?.collect();
            for address in &found {
                addresses.check(name.as_str(), address.ip()).map_err(io::Error::other)?;
            }
            Ok(found.into_iter())
        })
    }
}

/// Opens the TCP connections of a client.
#[derive(Clone)]
pub struct Connector {
    http: HttpConnector<Resolver>,
    addresses: Addresses,
}

impl Connector {
    pub(crate) fn new(addresses: Addresses) -> Self {
        let mut http = HttpConnector::new_with_resolver(Resolver { system: GaiResolver::new(), addresses });
        http.set_nodelay(true);
        http.enforce_http(false);
        Self { http, addresses }
    }

    /// Bounds how long sent data may stay unacknowledged by the other end.
    pub(crate) fn set_tcp_user_timeout(&mut self, timeout: Duration) {
        self.http.set_tcp_user_timeout(Some(timeout));
    }
}

impl Service<Uri> for Connector {
    type Response = <HttpConnector<Resolver> as Service<Uri>>::Response;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Answer<Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        // An address as host does not go through the resolver.
        let allowed = self.addresses.check_url(&url);
        let connecting = self.http.call(url);
        Box::pin(async move {
            allowed?;
            Ok(connecting.await?)
        })
    }
}
