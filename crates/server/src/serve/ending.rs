//! What ends a server that serves.

use futures::future::OptionFuture;
use steadfast_cluster::OwnName;

use super::ServeError;
use super::archive::PoolArchive;
use super::signals::Signals;

/// The signals, the name of a node of a cluster, and the archive that another process may take.
pub(super) struct Ending<'a> {
    pub(super) signals: &'a mut Signals,
    own_name: Option<OwnName>,
    archive: Option<&'a PoolArchive>,
}

impl<'a> Ending<'a> {
    /// Checks the name before the server serves.
    ///
    /// # Errors
    /// Another process has this node's name, as a message.
    pub(super) async fn new(
        signals: &'a mut Signals,
        own_name: Option<OwnName>,
        archive: Option<&'a PoolArchive>,
    ) -> Result<Self, String> {
        if let Some(own_name) = &own_name {
            own_name.check().await?;
        }
        Ok(Self { signals, own_name, archive })
    }

    /// Waits for the first of them. Returns the name of the signal.
    ///
    /// # Errors
    /// Another process has this node's name, or the archive.
    pub(super) async fn next(&mut self) -> Result<&'static str, ServeError> {
        let taken = OptionFuture::from(self.own_name.as_ref().map(OwnName::taken));
        let superseded = OptionFuture::from(self.archive.map(PoolArchive::superseded));
        tokio::select! {
            biased;
            signal = self.signals.next() => Ok(signal),
            Some(why) = taken => Err(ServeError::Failed(why)),
            Some(superseded) = superseded => Err(superseded),
        }
    }
}
