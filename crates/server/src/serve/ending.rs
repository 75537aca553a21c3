//! What ends a server that serves.

use futures::future::OptionFuture;
use steadfast_cluster::OwnName;
use steadfast_flow::Lease;

use super::ServeError;
use super::archive::PoolArchive;
use super::signals::Signals;

/// The signals, the name of a node of a cluster, and the archive that another process may take.
pub(super) struct Ending<'a> {
    pub(super) signals: &'a mut Signals,
    own_name: Option<OwnName>,
    archive: Option<&'a PoolArchive>,
    lease: &'a Lease,
}

impl<'a> Ending<'a> {
    /// Checks the name before the server serves. The lease ends when another process owns the pool.
    ///
    /// # Errors
    /// Another process has this node's name.
    pub(super) async fn new(
        signals: &'a mut Signals,
        own_name: Option<OwnName>,
        archive: Option<&'a PoolArchive>,
        lease: &'a Lease,
    ) -> Result<Self, ServeError> {
        if let Some(own_name) = &own_name {
            own_name.check().await?;
        }
        Ok(Self { signals, own_name, archive, lease })
    }

    /// Waits for the first of them. Returns the name of the signal.
    ///
    /// # Errors
    /// Another process has this node's name, or the archive.
    pub(super) async fn next(&mut self) -> Result<&'static str, ServeError> {
        let taken = OptionFuture::from(self.own_name.as_ref().map(OwnName::taken));
        let superseded = OptionFuture::from(self.archive.map(PoolArchive::superseded));
        let why = tokio::select! {
            biased;
            signal = self.signals.next() => return Ok(signal),
            Some(why) = taken => why.into(),
            Some(superseded) = superseded => superseded,
        };
        if matches!(why, ServeError::Superseded(_)) {
            // Requests in progress are not answered any more: the other process may know otherwise.
            self.lease.end();
        }
        Err(why)
    }
}
