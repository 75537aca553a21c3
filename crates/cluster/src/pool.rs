//! The home that a pool belongs to. The pool keeps the home's name and the list of homes, so disks
//! of another home are found at the start, and channels whose home has changed.

use serde::{Deserialize, Serialize};
use steadfast_log::{Durability, Priority};
use steadfast_store::{FOR_EVER_MS, HistoryQuery, NewPublication, Store, StoreError};

use crate::roster::Roster;

/// The internal channel that keeps it, as its only publication.
const CHANNEL: &str = "\0home";

/// The home that a pool belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolHome {
    /// Its name; empty: a server without a cluster.
    pub name: String,
    /// The names of all homes.
    pub homes: Vec<String>,
    /// What links compare, in hexadecimal.
    pub homes_hash: String,
}

impl PoolHome {
    /// This node; `None`: a server without a cluster.
    pub fn new(roster: Option<&Roster>) -> Self {
        roster.map_or_else(Self::default, |roster| Self {
            name: roster.name(roster.own()).to_owned(),
            homes: roster.homes().to_vec(),
            homes_hash: roster.homes_hash().iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    /// The home that a pool belongs to, if it is that of a cluster.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn read(store: &Store) -> Result<Option<Self>, StoreError> {
        let newest = HistoryQuery { since: None, limit: 1, reverse: true };
        let history = store.channel(CHANNEL)?.history(newest).await?;
        let known = history.publications.first().and_then(|newest| serde_json::from_slice::<Self>(&newest.body).ok());
        Ok(known.filter(|home| !home.name.is_empty()))
    }

    async fn write(&self, store: &Store) -> Result<(), StoreError> {
        let new = NewPublication {
            body: serde_json::to_vec(self).unwrap_or_default().into(),
            history_size: 1,
            history_ttl_ms: FOR_EVER_MS,
            durability: Durability::Sync,
            priority: Priority::Delete,
            key: None,
        };
        store.channel(CHANNEL)?.publish(new).await.map(drop)
    }

    /// Takes a pool for this node. `accept` takes that of another home, one with channels that have
    /// another home now, and one whose home cannot be read.
    ///
    /// # Errors
    /// The pool is that of another home, has such channels, or is on disks of which the one with
    /// the home's name is missing; the message is for operators.
    pub async fn take(store: &Store, roster: Option<&Roster>, accept: bool) -> Result<(), String> {
        let own = Self::new(roster);
        let known = match Self::read(store).await {
            Ok(known) => known.unwrap_or_default(),
            // A server without a cluster serves what its other disks have.
            Err(error) if accept || roster.is_none() => {
                tracing::warn!(%error, "the home that the pool belongs to cannot be read; it is not checked");
                return Ok(());
            }
            Err(error) => {
                return Err(format!(
                    "the home that the pool belongs to cannot be read: {error}. Connect the disk that is missing. Only if the other                      disks are certainly those of {:?}, start it with --accept-moved-channels",
                    own.name
                ));
            }
        };
        if known == own {
            return Ok(());
        }
        if !accept {
            own.check_name(&known)?;
            own.check_channels(&known, store, roster)?;
        }
        tracing::info!(home = own.name, homes = own.homes.join(", "), "the pool belongs to this home");
        if let Err(error) = own.write(store).await {
            tracing::warn!(%error, "the pool does not take the name of its home");
        }
        Ok(())
    }

    fn check_name(&self, known: &Self) -> Result<(), String> {
        if known.name.is_empty() || known.name == self.name {
            return Ok(());
        }
        let this = match self.name.is_empty() {
            true => "this server has no cluster.name".to_owned(),
            false => format!("this node is {:?}", self.name),
        };
        Err(format!(
            "the pool belongs to the home {:?}, and {this}: publications would be stored in the wrong pool. Use this node's own \
             disks. Only if the node has been renamed, start it once with --accept-moved-channels",
            known.name
        ))
    }

    fn check_channels(&self, known: &Self, store: &Store, roster: Option<&Roster>) -> Result<(), String> {
        let Some(roster) = roster else { return Ok(()) };
        let moved = |channel: &str| roster.home(channel) != roster.own();
        let count = store.channels().count(moved).map_err(|e| format!("the channels of the pool: {e}"))?;
        if count == 0 {
            return Ok(());
        }
        let before = match known.homes.is_empty() {
            true => "the pool was not yet one of these homes".to_owned(),
            false => format!("the homes were {}", known.homes.join(", ")),
        };
        Err(format!(
            "channels with history in this pool that would have another home: {count} ({before}, and are {}; mirror_home counts too). \
             Their history would stay here, and not be found. To let them begin anew, start each home once with \
             --accept-moved-channels",
            self.homes.join(", ")
        ))
    }
}
