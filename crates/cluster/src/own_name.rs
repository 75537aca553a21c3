//! That no other process has the name of this node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::links::Links;
use crate::transport::Transport;

/// Interval at which a process asks who answers at its own address.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Whether another process has the name of this node. Two homes of one name would both acknowledge
/// the publications of its channels, each into its own pool. So a process ends when it finds that
/// another one answers at the address that `nodes` gives it, or when other nodes have refused it as
/// the second of its name for about ten seconds.
pub struct OwnName {
    links: Links,
    transport: Arc<dyn Transport>,
    /// Where this process listens, for messages.
    listening: SocketAddr,
}

impl OwnName {
    /// The name of the node of `links`, which listens at `listening`.
    pub fn new(links: Links, transport: Arc<dyn Transport>, listening: SocketAddr) -> Self {
        Self { links, transport, listening }
    }

    /// Asks once who answers at this node's own address. An address that does not answer is no
    /// error, because a network may route no connection of a machine to itself; the log names it.
    ///
    /// # Errors
    /// Another process answers, with this node's name and the cluster's secret; the text is for
    /// operators.
    pub async fn check(&self) -> Result<(), String> {
        let roster = self.links.roster();
        let (name, address) = (roster.name(roster.own()), roster.address(roster.own()));
        match self.links.is_own_address(&*self.transport).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!(
                "another process with the name {name:?} answers at {address}, the address of {name:?} in cluster.nodes; this \
                 one listens at {}: each process needs its own cluster.name",
                self.listening
            )),
            Err(why) => {
                self.links.own_address_fails(why);
                Ok(())
            }
        }
    }

    /// Completes, with a message for operators, when another process has this node's name.
    pub async fn taken(&self) -> String {
        let asking = async {
            loop {
                self.links.env().sleep(ASK_EVERY).await;
                if let Err(why) = self.check().await {
                    return why;
                }
            }
        };
        tokio::select! {
            why = asking => why,
            why = self.links.refused_as_duplicate() => format!("{why} (this one listens at {})", self.listening),
        }
    }
}
