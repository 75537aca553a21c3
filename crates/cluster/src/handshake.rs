//! The handshake of a link: both nodes prove that they have the cluster's secret, and compare their
//! protocol versions, lists of homes, namespaces and tenures.
//!
//! 1. Each node sends a hello with a nonce, first the opening node.
//! 2. The opening node sends its proof, a MAC over both hellos.
//! 3. The answering node checks it and sends its own proof. The link is up, unless the answering
//!    node has a link to another process with the same name.
//!
//! The opening node proves first. A stranger who opens a link never gets a proof, from which a weak
//! secret could be guessed.
//!
//! A process also opens such a link to its own address. Where another process answers, two have one
//! name ([`crate::OwnName`]).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use prost::Message;
use sha2::Sha256;
use steadfast_flow::{Env, shortened};

use crate::frame::{Hello, Kind, Proof, Refused, VERSION, VERSION_MIN};
use crate::link::Incoming;
use crate::namespaces::{self, Namespaces};
use crate::outbox::Outbox;
use crate::roster::{NodeIndex, Roster};
use crate::tenure::{Tenure, Tenures};

/// What a process says of itself in a hello.
pub(crate) struct Identity {
    pub(crate) roster: Arc<Roster>,
    pub(crate) namespaces: Namespaces,
    pub(crate) secret: Vec<u8>,
    /// Random bytes of this process.
    pub(crate) incarnation: Bytes,
    pub(crate) tenures: Tenures,
}

/// The other node of a link.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: NodeIndex,
    pub(crate) incarnation: Bytes,
    pub(crate) number: u64,
    pub(crate) tenure: Tenure,
    /// Namespaces of both nodes that differ in options that a home does not need.
    pub(crate) differing: Vec<String>,
}

/// Why a link of another node is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The other end has not proved that it has the secret.
    Stranger(String),
    /// A node that has.
    Node(NodeIndex, String),
    /// It has seen a later tenure of this node, and has proved that it has the secret.
    Superseded(String),
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::Stranger(why)
    }
}

/// Why a link of this node could not be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The other node has a link to another process with this node's name, and has proved that it
    /// has the secret.
    Duplicate(String),
    /// The other node has seen a later tenure of this node, and has proved that it has the secret.
    Superseded(String),
    /// Anything else.
    Failed(String),
}

impl From<String> for OpenError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Time that opening a link and its handshake may take.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(3);

/// Most characters of a reason for which another node refuses a link.
const REASON_CHARS_MAX: usize = 256;

/// Which of the two nodes made a proof, so that it cannot be sent back.
#[derive(Clone, Copy)]
enum Role {
    Opening = 1,
    Answering = 2,
}

/// 16 random bytes.
pub(crate) fn random_bytes(env: &Env) -> Bytes {
    [env.random_u64().to_be_bytes(), env.random_u64().to_be_bytes()].concat().into()
}

impl Identity {
    /// What this process tells the node `to` of itself.
    fn hello(&self, to: NodeIndex, number: u64, env: &Env) -> Hello {
        Hello {
            version: VERSION,
            version_min: VERSION_MIN,
            node: self.roster.name(self.roster.own()).to_owned(),
            incarnation: self.incarnation.clone(),
            number,
            homes_hash: Bytes::copy_from_slice(self.roster.homes_hash()),
            nonce: random_bytes(env),
            namespaces: self.namespaces.to_wire(),
            tenure: self.tenures.own(),
            seen: self.tenures.latest(to),
        }
    }

    /// Why this process must end, by the hello of a node that has proved that it has the secret.
    fn superseded(&self, hello: &Hello) -> Result<(), String> {
        let own = self.tenures.own();
        if !hello.seen.supersedes(&own) {
            return Ok(());
        }
        Err(format!(
            "another process with the name {:?} owns the archive of its pool: the node {:?} has seen its tenure {}, and this \
             process has {}. If the archive was put back to an earlier state, restart the other nodes",
            self.roster.name(self.roster.own()),
            hello.node,
            hello.seen.number,
            own.number
        ))
    }

    fn proof(&self, role: Role, opening: &Hello, answering: &Hello, duplicate: String) -> Bytes {
        let proof = self.mac(role, opening, answering).finalize().into_bytes();
        Kind::Proof(Proof { proof: Bytes::copy_from_slice(&proof), duplicate }).to_bytes()
    }

    fn mac(&self, role: Role, opening: &Hello, answering: &Hello) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("any length is a key");
        mac.update(&[role as u8]);
        for hello in [opening, answering] {
            mac.update(&hello.version.to_be_bytes());
            mac.update(&hello.version_min.to_be_bytes());
            mac.update(&hello.number.to_be_bytes());
            let namespaces = namespaces::hash(&hello.namespaces);
            let (tenure, seen) = (hello.tenure.encode_to_vec(), hello.seen.encode_to_vec());
            let texts = [hello.node.as_bytes(), &hello.incarnation, &hello.homes_hash, &hello.nonce, &namespaces];
            for text in texts.into_iter().chain([&tenure[..], &seen]) {
                mac.update(&(text.len() as u64).to_be_bytes());
                mac.update(text);
            }
        }
        mac
    }

    /// The node that a hello names, if this node can talk to it.
    fn find(&self, hello: &Hello) -> Result<NodeIndex, String> {
        if hello.version < VERSION_MIN || hello.version_min > VERSION {
            return Err(format!(
                "the node {:?} speaks version {} of the protocol, and this one {VERSION_MIN} to {VERSION}",
                shortened(&hello.node),
                hello.version
            ));
        }
        let node = self.roster.find(&hello.node);
        node.ok_or_else(|| format!("the node {:?} is not in the list of nodes", shortened(&hello.node)))
    }

    /// Checks what must be the same on both nodes. Returns the namespaces that differ in other
    /// options.
    fn compare(&self, hello: &Hello) -> Result<Vec<String>, String> {
        if hello.homes_hash != self.roster.homes_hash()[..] {
            return Err(format!(
                "the node {:?} has another list of homes: cluster.homes must be the same on all nodes",
                hello.node
            ));
        }
        self.namespaces.compare(&hello.namespaces).map_err(|stored| {
            format!(
                "the node {:?} has other options of history for {}: history_size, history_ttl, durability and mirror_* \
                 must be the same on all nodes",
                hello.node,
                namespaces::in_words(&stored)
            )
        })
    }

    /// Both nodes of a link prove that they have the secret, if `to` has a later tenure than
    /// `than`. Returns the hello of `to`.
    async fn prove(
        &self,
        to: NodeIndex,
        (number, than): (u64, Option<&Tenure>),
        incoming: &mut Incoming,
        outbox: &Outbox,
        env: &Env,
    ) -> Result<Hello, OpenError> {
        let opening = self.hello(to, number, env);
        outbox.send(Kind::Hello(opening.clone()).to_bytes());
        let answering = hello(incoming).await?;
        if self.find(&answering)? != to {
            return Err(OpenError::Failed(format!("the node at this address is {:?}", answering.node)));
        }
        if than.is_some_and(|than| !answering.tenure.supersedes(than)) {
            return Err(OpenError::Failed("it has no later tenure".to_owned()));
        }
        outbox.send(self.proof(Role::Opening, &opening, &answering, String::new()));
        let Proof { proof, duplicate } = proof(incoming).await?;
        self.mac(Role::Answering, &opening, &answering)
            .verify_slice(&proof)
            .map_err(|_| "the node has another secret: cluster.secret must be the same on all nodes".to_owned())?;
        self.superseded(&answering).map_err(OpenError::Superseded)?;
        if !duplicate.is_empty() {
            return Err(OpenError::Duplicate(duplicate.chars().take(REASON_CHARS_MAX).collect()));
        }
        Ok(answering)
    }

    /// Opens a link to `to`, another node, if that has a later tenure than `than`.
    pub(crate) async fn open(
        &self,
        to: NodeIndex,
        (number, than): (u64, Option<&Tenure>),
        incoming: &mut Incoming,
        outbox: &Outbox,
        env: &Env,
    ) -> Result<Peer, OpenError> {
        debug_assert!(to != self.roster.own(), "a node has no link to itself");
        let answering = self.prove(to, (number, than), incoming, outbox, env).await?;
        let differing = self.compare(&answering)?;
        Ok(Peer { node: to, incarnation: answering.incarnation, number, tenure: answering.tenure, differing })
    }

    /// The tenure of the process that answers at an address of this node; `None`: it is this one.
    pub(crate) async fn other_at_own(
        &self,
        incoming: &mut Incoming,
        outbox: &Outbox,
        env: &Env,
    ) -> Result<Option<Tenure>, OpenError> {
        let answering = self.prove(self.roster.own(), (0, None), incoming, outbox, env).await?;
        Ok((answering.incarnation != self.incarnation).then_some(answering.tenure))
    }

    /// Answers a node that opens a link, if `admit` accepts its process. A refusal is sent to it.
    /// `None`: a process with the name of this node has asked who answers here, and knows it now.
    pub(crate) async fn answer(
        &self,
        incoming: &mut Incoming,
        outbox: &Outbox,
        admit: impl FnOnce(NodeIndex, &Hello) -> Result<(), String>,
        env: &Env,
    ) -> Result<Option<Peer>, Refusal> {
        let refuse = |reason: String| {
            outbox.send(Kind::Refused(Refused { reason: reason.clone() }).to_bytes());
            reason
        };
        let opening = hello(incoming).await?;
        let node = self.find(&opening).map_err(refuse)?;
        let answering = self.hello(node, opening.number, env);
        outbox.send(Kind::Hello(answering.clone()).to_bytes());
        let Proof { proof, .. } = proof(incoming).await?;
        self.mac(Role::Opening, &opening, &answering).verify_slice(&proof).map_err(|_| {
            refuse(format!(
                "the node {:?} has another secret: cluster.secret must be the same on all nodes",
                opening.node
            ))
        })?;
        let admitted = admit(node, &opening);
        let duplicate = admitted.as_ref().err().cloned().unwrap_or_default();
        outbox.send(self.proof(Role::Answering, &opening, &answering, duplicate));
        self.superseded(&opening).map_err(Refusal::Superseded)?;
        admitted.map_err(|why| Refusal::Node(node, why))?;
        if node == self.roster.own() {
            return Ok(None);
        }
        let differing = self.compare(&opening).map_err(|why| Refusal::Node(node, refuse(why)))?;
        let Hello { incarnation, number, tenure, .. } = opening;
        Ok(Some(Peer { node, incarnation, number, tenure, differing }))
    }
}

async fn hello(incoming: &mut Incoming) -> Result<Hello, String> {
    match incoming.frame().await?.kind {
        Some(Kind::Hello(hello)) => Ok(hello),
        other => Err(unexpected(other)),
    }
}

async fn proof(incoming: &mut Incoming) -> Result<Proof, String> {
    match incoming.frame().await?.kind {
        Some(Kind::Proof(proof)) => Ok(proof),
        other => Err(unexpected(other)),
    }
}

/// Why a frame ends the handshake. The reason of an unproved node is cut, because the log has it.
fn unexpected(frame: Option<Kind>) -> String {
    match frame {
        Some(Kind::Refused(Refused { reason })) => {
            let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
            format!("the other node refuses the link: {reason}")
        }
        _ => "the other end does not speak the protocol of links".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};

    use super::*;
    use crate::frame::FrameDecoder;
    use crate::roster::NodeAddress;

    fn identity(own: &str, env: &Env) -> Identity {
        let node = |name: &str| NodeAddress { name: name.to_owned(), address: format!("{name}:1"), standby: None };
        let roster = Roster::new(own, vec![node("a"), node("b")], &["a".to_owned()]).expect("valid");
        let namespaces = Namespaces::default();
        let tenures = Tenures::new(2, roster.own(), Arc::new(Tenure::default));
        Identity { roster: Arc::new(roster), namespaces, secret: own.into(), incarnation: random_bytes(env), tenures }
    }

    #[tokio::test]
    async fn a_node_without_the_secret_gets_no_proof() {
        let env = Env::tokio();
        let opening = Kind::Hello(identity("b", &env).hello(NodeIndex(0), 1, &env)).to_bytes();
        let guess = Kind::Proof(Proof { proof: Bytes::from_static(&[0; 32]), duplicate: String::new() }).to_bytes();
        let (outbox, sent) = Outbox::new(1 << 20);
        let mut incoming = Incoming::new(stream::iter([Ok(opening), Ok(guess)]).boxed());
        let refused = identity("a", &env).answer(&mut incoming, &outbox, |_, _| Ok(()), &env).await;
        let refused = refused.expect_err("another secret");
        assert!(matches!(&refused, Refusal::Stranger(why) if why.contains("another secret")), "{refused:?}");
        drop(outbox);
        let mut decoder = FrameDecoder::default();
        sent.collect::<Vec<_>>().await.into_iter().for_each(|bytes| decoder.push(&bytes));
        let mut kinds = Vec::new();
        while let Some(frame) = decoder.next_frame().expect("whole frames") {
            kinds.extend(frame.kind);
        }
        assert!(matches!(&kinds[..], [Kind::Hello(_), Kind::Refused(_)]), "{kinds:?}");
    }
}
