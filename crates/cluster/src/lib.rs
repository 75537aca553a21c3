//! The nodes of a cluster: the links between them, and the home of each channel.
//!
//! Every node has one link to every other node. A link is a stream of frames in each direction,
//! first in, first out ([`frame`]). It begins with a handshake (`handshake`) and ends when either
//! side closes it, when nothing arrives for three seconds, or when its outbox is full (`outbox`).
//! It never loses or repeats a frame in its middle.
//!
//! The list of homes is configuration and equal on all nodes ([`Roster`]). A channel's home follows
//! from its name and that list. [`Channels`] are the channels of all nodes: `home` has those of
//! this node, and `front` those of other nodes with subscribers here.

mod channels;
mod dialer;
mod door;
mod error;
mod events;
pub mod frame;
mod front;
// The entries of the fuzz targets, in builds for fuzzing and tests only.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
#[path = "../fuzz/mod.rs"]
pub mod fuzzing;
mod handshake;
mod hashing;
mod home;
mod keys;
mod link;
mod links;
mod members;
mod name_taken;
mod namespaces;
mod options;
mod outbox;
mod own_name;
mod pool;
mod publish;
mod roster;
mod sabotage;
mod sessions;
mod status;
mod tenure;
mod transport;

pub use channels::{Attachment, Channel, Channels, ChannelsStatus, Presence};
pub use dialer::Dialer;
pub use door::ClusterDoor;
pub use error::ChannelError;
pub use events::LinkEvents;
pub use front::HistoryBounds;
pub use links::{ClusterOptions, Links};
pub use members::{ClientId, Member, MemberChange};
pub use name_taken::NameTaken;
pub use namespaces::{NamespaceTerms, Namespaces};
pub use options::ChannelsOptions;
pub use outbox::Outbox;
pub use own_name::OwnName;
pub use pool::PoolHome;
pub use publish::{Accepted, Publish, StoreTerms};
pub use roster::{NodeAddress, NodeIndex, Roster};
pub use sabotage::ClusterSabotage;
pub use sessions::Sessions;
pub use status::{ClusterStatus, LinkState, LinkStatus, NodeStatus, RefusedProcess};
pub use tenure::{OwnTenure, Tenure};
pub use transport::{HttpTransport, PinnedTls, Transport, Wire};
