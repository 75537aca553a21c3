//! That no other process has the name of this node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use steadfast_flow::log_rarely;

use crate::handshake::OpenError;
use crate::link::Incoming;
use crate::links::Links;
use crate::name_taken::NameTaken;
use crate::tenure::Tenure;
use crate::transport::Transport;

/// Interval at which a process asks who answers at its own addresses.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Time that a question to one of them may take.
const ANSWER: Duration = Duration::from_secs(1);

/// Whether another process has the name of this node. Two homes of one name would both acknowledge
/// the publications of its channels, each into its own pool. So a process does not serve while
/// another one answers at an address that `nodes` gives it, unless that one is superseded. Later it
/// ends when it cannot reach itself there, but another one. It also ends when other nodes have
/// refused it as the second of its name for about ten seconds, or have seen a later tenure.
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

    /// Asks once who answers at this node's own addresses, before this process serves. It is no
    /// error if none does, because a network may route no connection of a machine to itself; the
    /// log names them.
    ///
    /// # Errors
    /// Another process answers, with this node's name and the cluster's secret.
    pub async fn check(&self) -> Result<(), NameTaken> {
        self.ask(false).await
    }

    async fn ask(&self, serves: bool) -> Result<(), NameTaken> {
        let (roster, own) = (self.links.roster(), self.links.identity().tenures.own());
        let ask = async |address| (address, self.other_at(address).await);
        let answers = join_all(roster.addresses(roster.own()).map(ask)).await;
        let reaches_itself = answers.iter().any(|(_, answer)| matches!(answer, Ok(None)));
        for (address, answer) in answers {
            match answer {
                Ok(None) => {}
                Ok(Some(other)) if own.supersedes(&other) => {
                    log_rarely!(
                        warn,
                        "cluster: the former owner of this node's pool answers at {address}: nodes refuse it, and it ends"
                    );
                }
                // The other one began later, and ends.
                Ok(Some(other))
                    if serves && reaches_itself && (other.archive.is_empty() || !own.archive.is_empty()) =>
                {
                    log_rarely!(warn, "cluster: {}", self.duplicate(address));
                }
                Ok(Some(_)) => return Err(NameTaken::Duplicate(self.duplicate(address))),
                Err(OpenError::Superseded(why)) => return Err(NameTaken::Superseded(why)),
                Err(OpenError::Failed(why) | OpenError::Duplicate(why)) => {
                    if !reaches_itself {
                        self.links.own_address_fails(address, why);
                    }
                }
            }
        }
        Ok(())
    }

    /// The tenure of the process with this node's name that answers at an address; `None`: it is
    /// this process.
    async fn other_at(&self, address: &str) -> Result<Option<Tenure>, OpenError> {
        let (outbox, frames) = self.links.outbox();
        let answer = async {
            let incoming = self.transport.open(address, frames.boxed()).await?;
            self.links.identity().other_at_own(&mut Incoming::new(incoming), &outbox, self.links.env()).await
        };
        let answer = self.links.env().timeout(ANSWER, answer).await;
        answer.unwrap_or_else(|| Err(format!("no answer from {address} within {} s", ANSWER.as_secs()).into()))
    }

    fn duplicate(&self, address: &str) -> String {
        let name = self.links.roster().name(self.links.roster().own());
        format!(
            "another process with the name {name:?} answers at {address}, the address of {name:?} in cluster.nodes; this one \
             listens at {}: each process needs its own cluster.name",
            self.listening
        )
    }

    /// Completes when another process has this node's name.
    pub async fn taken(&self) -> NameTaken {
        let asking = async {
            loop {
                self.links.env().sleep(ASK_EVERY).await;
                if let Err(why) = self.ask(true).await {
                    return why;
                }
            }
        };
        let why = tokio::select! {
            why = asking => return why,
            why = self.links.taken() => why,
        };
        match why {
            NameTaken::Duplicate(why) => {
                NameTaken::Duplicate(format!("{why} (this one listens at {})", self.listening))
            }
            superseded @ NameTaken::Superseded(_) => superseded,
        }
    }
}
