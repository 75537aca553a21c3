//! The nodes of a cluster, and which of them is the home of a channel.

use std::collections::{BTreeMap, HashSet};

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Maximum length of a node's name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Slots of the ring. A channel's slot is a hash of its name.
const SLOTS: usize = 16_384;

/// What the hash of the list of homes begins with: nodes with another ring would give one channel
/// two homes.
const RING: &[u8] = b"rendezvous by name, 16384 slots";

/// A node and its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// Its name: 1 to 64 letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Host and port of its links.
    pub address: String,
    /// Host and port of its links on the machine of its standby, once that is promoted. Homes only.
    pub standby: Option<String>,
}

impl NodeAddress {
    fn addresses(&self) -> impl Iterator<Item = &str> {
        [Some(self.address.as_str()), self.standby.as_deref()].into_iter().flatten()
    }
}

/// A node's index in the list of nodes of this process. Other nodes may number them otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIndex(pub u16);

/// The homes of channels by slot. A slot belongs to the home with the highest hash of name and slot
/// (rendezvous hashing). So a home that is added or removed moves its own slots only, and the order
/// of the homes does not matter.
#[derive(Debug)]
struct HomeRing(Vec<NodeIndex>);

impl HomeRing {
    fn new(homes: &[(&str, NodeIndex)]) -> Self {
        let home = |slot: usize| {
            let ranked =
                homes.iter().map(|(name, node)| (xxh3_64_with_seed(name.as_bytes(), slot as u64), name, *node));
            ranked.max_by_key(|(rank, name, _)| (*rank, *name)).map(|(.., node)| node)
        };
        let homes: Vec<NodeIndex> = (0..SLOTS).filter_map(home).collect();
        assert_eq!(homes.len(), SLOTS, "each slot has a home");
        Self(homes)
    }

    #[inline]
    fn home(&self, channel: &str) -> NodeIndex {
        self.0[xxh3_64(channel.as_bytes()) as usize % SLOTS]
    }
}

/// The nodes of a cluster.
#[derive(Debug)]
pub struct Roster {
    nodes: Vec<NodeAddress>,
    own: NodeIndex,
    homes: HomeRing,
    /// Homes of channels by the beginning of their names, which the ring does not decide.
    pinned: Vec<(String, NodeIndex)>,
    home_names: Vec<String>,
    homes_hash: [u8; 32],
}

impl Roster {
    /// Checks the lists. `own` is the name of this node, and `homes` names the homes. Their order
    /// does not matter.
    ///
    /// # Errors
    /// The first mistake, for operators.
    pub fn new(own: &str, nodes: Vec<NodeAddress>, homes: &[String]) -> Result<Self, String> {
        let mut names = HashSet::new();
        for node in &nodes {
            check_name(&node.name)?;
            if !names.insert(&node.name) {
                return Err(format!("there are two nodes of the name {:?}", node.name));
            }
            for address in node.addresses() {
                check_address(address).map_err(|e| format!("the node {}: {e}", node.name))?;
            }
            if node.standby.as_ref() == Some(&node.address) {
                return Err(format!("the node {}: its standby needs an address of its own", node.name));
            }
        }
        let index = |name: &str| nodes.iter().position(|node| node.name == name).map(|at| NodeIndex(at as u16));
        if nodes.len() > usize::from(u16::MAX) {
            return Err("there are too many nodes".to_owned());
        }
        let own = index(own).ok_or_else(|| format!("the name of this node, {own:?}, is not among the nodes"))?;
        if homes.is_empty() {
            return Err("name at least one home, because channels need one".to_owned());
        }
        let (mut named, mut hash) = (BTreeMap::new(), Sha256::new_with_prefix(RING));
        for home in homes {
            let node = index(home).ok_or_else(|| format!("the home {home:?} is not among the nodes"))?;
            if named.insert(home.as_str(), node).is_some() {
                return Err(format!("the home {home:?} is named twice"));
            }
        }
        for home in named.keys() {
            hash.update((home.len() as u64).to_be_bytes());
            hash.update(home);
        }
        if let Some(front) = nodes.iter().find(|node| node.standby.is_some() && !named.contains_key(node.name.as_str()))
        {
            return Err(format!("the node {}: only a home has a standby, because a front has no pool", front.name));
        }
        let ring = HomeRing::new(&named.into_iter().collect::<Vec<_>>());
        let (home_names, homes_hash) = (homes.to_vec(), hash.finalize().into());
        Ok(Self { own, homes: ring, pinned: Vec::new(), home_names, homes_hash, nodes })
    }

    /// Gives all channels whose names begin with `prefix` one home, instead of that of the ring.
    ///
    /// # Errors
    /// The node is not among the homes; the message is for operators.
    pub fn pin(&mut self, prefix: &str, home: &str) -> Result<(), String> {
        let node = self.find(home).filter(|_| self.home_names.iter().any(|name| name == home));
        let node = node.ok_or_else(|| format!("{home:?} is not among the homes: {}", self.home_names.join(", ")))?;
        let mut hash = Sha256::new_with_prefix(self.homes_hash);
        for part in [prefix, home] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        self.homes_hash = hash.finalize().into();
        self.pinned.push((prefix.to_owned(), node));
        Ok(())
    }

    /// Whether this node is a home. Other nodes are fronts only.
    pub fn is_home(&self) -> bool {
        self.home_names.iter().any(|name| name == self.name(self.own))
    }

    /// This node.
    pub fn own(&self) -> NodeIndex {
        self.own
    }

    /// The name of a node.
    pub fn name(&self, node: NodeIndex) -> &str {
        self.nodes.get(usize::from(node.0)).map_or("", |node| &node.name)
    }

    /// The address of a node's links.
    pub fn address(&self, node: NodeIndex) -> &str {
        self.nodes.get(usize::from(node.0)).map_or("", |node| &node.address)
    }

    /// The addresses of a node's links: its own, and that of its standby.
    pub fn addresses(&self, node: NodeIndex) -> impl Iterator<Item = &str> {
        self.nodes.get(usize::from(node.0)).into_iter().flat_map(NodeAddress::addresses)
    }

    /// The address of the links of a node's standby.
    pub fn standby(&self, node: NodeIndex) -> Option<&str> {
        self.nodes.get(usize::from(node.0))?.standby.as_deref()
    }

    /// A node by its name.
    pub fn find(&self, name: &str) -> Option<NodeIndex> {
        self.nodes.iter().position(|node| node.name == name).map(|at| NodeIndex(at as u16))
    }

    /// All nodes, this one included.
    pub fn nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.nodes.len() as u16).map(NodeIndex)
    }

    /// The names of the homes, in their order.
    pub fn homes(&self) -> &[String] {
        &self.home_names
    }

    /// The home of a channel. It takes no lock.
    #[inline]
    pub fn home(&self, channel: &str) -> NodeIndex {
        if let Some((_, home)) = self.pinned.iter().find(|(prefix, _)| channel.starts_with(prefix)) {
            return *home;
        }
        self.homes.home(channel)
    }

    /// A hash of the list of homes and of the pinned channels. Nodes with different ones would give
    /// one channel two homes.
    pub(crate) fn homes_hash(&self) -> &[u8; 32] {
        &self.homes_hash
    }
}

fn check_address(address: &str) -> Result<(), String> {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match parts.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(_) => Ok(()),
        None => Err(format!("{address:?} is not an address: use HOST:PORT")),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
        return Err(format!(
            "{name:?} is not a name for a node: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    pub(crate) fn nodes(names: &[&str]) -> Vec<NodeAddress> {
        let node = |name: &&str| NodeAddress {
            name: (*name).to_owned(),
            address: format!("{name}.example:7000"),
            standby: None,
        };
        names.iter().map(node).collect()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn mistakes_are_named() {
        let a = |address: &str, standby: Option<&str>| NodeAddress {
            name: "a".to_owned(),
            address: address.to_owned(),
            standby: standby.map(str::to_owned),
        };
        let good = || nodes(&["a", "b"]);
        for (own, nodes, homes, expected) in [
            ("c", good(), names(&["a"]), "\"c\", is not among the nodes"),
            ("a", good(), names(&[]), "at least one home"),
            ("a", good(), names(&["c"]), "home \"c\" is not among"),
            ("a", good(), names(&["a", "a"]), "named twice"),
            ("a", nodes(&["a", "a"]), names(&["a"]), "two nodes of the name"),
            ("a", nodes(&["a", "b c"]), names(&["a"]), "not a name for a node"),
            ("a", vec![a("a", None)], names(&["a"]), "HOST:PORT"),
            ("a", vec![a("a:1", Some("a2"))], names(&["a"]), "HOST:PORT"),
            ("a", vec![a("a:1", Some("a:1"))], names(&["a"]), "address of its own"),
            ("a", [vec![a("a:1", Some("a2:1"))], nodes(&["b"])].concat(), names(&["b"]), "only a home has a standby"),
        ] {
            let error = Roster::new(own, nodes, &homes).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_ring_is_part_of_the_protocol() {
        let roster = Roster::new("a", nodes(&["a", "b", "c"]), &names(&["a", "b", "c"])).expect("valid");
        let homes: String = (0..20).map(|n| roster.name(roster.home(&format!("room:{n}"))).to_owned()).collect();
        assert_eq!(homes, "aaacbacbbbbcbcbbbaaa");
    }

    #[test]
    fn pinned_channels_have_the_named_home() {
        let roster = || Roster::new("front", nodes(&["a", "b", "front"]), &names(&["a", "b"])).expect("valid");
        let mut pinned = roster();
        pinned.pin("files:/", "b").expect("a home");
        assert!(pinned.pin("others:/", "front").expect_err("no home").contains("a, b"));
        for n in 0..100 {
            assert_eq!(pinned.name(pinned.home(&format!("files:/{n}"))), "b");
            assert_eq!(pinned.home(&format!("room:{n}")), roster().home(&format!("room:{n}")));
        }
        assert_ne!(pinned.homes_hash(), roster().homes_hash());
        assert!(!roster().is_home());
        assert!(Roster::new("a", nodes(&["a"]), &names(&["a"])).expect("valid").is_home());
    }

    #[test]
    fn all_nodes_find_the_same_home_and_a_further_home_takes_only_its_share() {
        let two = Roster::new("a", nodes(&["a", "b", "front"]), &names(&["a", "b"])).expect("valid");
        let same = Roster::new("front", nodes(&["front", "b", "a"]), &names(&["a", "b"])).expect("valid");
        let three = Roster::new("a", nodes(&["a", "b", "c"]), &names(&["a", "b", "c"])).expect("valid");
        assert_eq!(two.homes_hash(), same.homes_hash());
        assert_ne!(two.homes_hash(), three.homes_hash());
        let reordered = Roster::new("a", nodes(&["a", "b"]), &names(&["b", "a"])).expect("valid");
        assert_eq!(two.homes_hash(), reordered.homes_hash());
        let without_a = Roster::new("c", nodes(&["a", "b", "c"]), &names(&["c", "b"])).expect("valid");
        let mut counts = HashMap::new();
        for n in 0..30_000 {
            let channel = format!("room:{n}");
            let home = two.name(two.home(&channel));
            assert_eq!(home, same.name(same.home(&channel)));
            assert_eq!(home, reordered.name(reordered.home(&channel)));
            let home_of_three = three.name(three.home(&channel));
            let left = without_a.name(without_a.home(&channel));
            assert!(left == home_of_three || home_of_three == "a", "only the channels of the removed home move");
            let later = three.name(three.home(&channel));
            assert!(later == home || later == "c");
            *counts.entry(later.to_owned()).or_insert(0) += 1;
        }
        assert!(counts.len() == 3 && counts.values().all(|count| (8_000..12_000).contains(count)), "{counts:?}");
    }
}
