//! The subscribers of channels that keep presence. Counts are maintained, so reading them costs the
//! same for a channel of any size.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use steadfast_flow::Striped;
use uuid::Uuid;

use crate::protocol::message::{ClientInfo, PresenceStatsResult};

/// Approximate bytes of a client's information beyond the texts of its user and application.
const CLIENT_BYTES: usize = 128;

#[derive(Default)]
struct Present {
    clients: HashMap<Uuid, Arc<ClientInfo>>,
    /// Number of sessions by user.
    users: HashMap<String, u32>,
}

/// The present clients, by channel.
#[derive(Default)]
pub(super) struct Presence(Striped<HashMap<Arc<str>, Present>>);

/// Approximate bytes of the information about clients.
pub(super) fn bytes_of_clients<'a>(clients: impl IntoIterator<Item = &'a ClientInfo>) -> usize {
    let one = |info: &ClientInfo| CLIENT_BYTES + info.user.len() + info.conn_info.len() + info.chan_info.len();
    clients.into_iter().map(one).sum()
}

impl Presence {
    /// Adds a client, or replaces its information.
    pub(super) fn add(&self, channel: &Arc<str>, client: Uuid, info: Arc<ClientInfo>) {
        let mut part = self.0.part(channel).lock();
        let members = part.entry(channel.clone()).or_default();
        let user = info.user.clone();
        if members.clients.insert(client, info).is_none() {
            *members.users.entry(user).or_default() += 1;
        }
    }

    /// Removes a client.
    pub(super) fn remove(&self, channel: &str, client: &Uuid) {
        let mut part = self.0.part(channel).lock();
        let Some(members) = part.get_mut(channel) else { return };
        if let Some(info) = members.clients.remove(client)
            && let Some(count) = members.users.get_mut(&info.user)
        {
            *count -= 1;
            if *count == 0 {
                members.users.remove(&info.user);
            }
        }
        if members.clients.is_empty() {
            part.remove(channel);
        }
    }

    /// The clients of a channel, at most `limit`.
    pub(super) fn list(&self, channel: &str, limit: usize) -> BTreeMap<String, ClientInfo> {
        let part = self.0.part(channel).lock();
        let clients = part.get(channel).into_iter().flat_map(|members| &members.clients);
        clients.take(limit).map(|(client, info)| (client.to_string(), ClientInfo::clone(info))).collect()
    }

    /// Approximate bytes of such a list, to check before making it.
    pub(super) fn list_bytes(&self, channel: &str, limit: usize) -> usize {
        let part = self.0.part(channel).lock();
        let clients = part.get(channel).into_iter().flat_map(|members| members.clients.values());
        bytes_of_clients(clients.take(limit).map(|info| &**info))
    }

    /// The numbers of clients and users.
    pub(super) fn stats(&self, channel: &str) -> PresenceStatsResult {
        let part = self.0.part(channel).lock();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        part.get(channel).map_or_else(Default::default, |members| PresenceStatsResult {
            num_clients: count(members.clients.len()),
            num_users: count(members.users.len()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_sessions_and_users() {
        let presence = Presence::default();
        let channel: Arc<str> = "c".into();
        let info = |user: &str| Arc::new(ClientInfo { user: user.into(), ..Default::default() });
        let ids: Vec<Uuid> = (1..=3).map(Uuid::from_u128).collect();
        for (id, user) in ids.iter().zip(["a", "a", "b"]) {
            presence.add(&channel, *id, info(user));
            presence.add(&channel, *id, info(user));
        }
        assert_eq!(presence.stats("c"), PresenceStatsResult { num_clients: 3, num_users: 2 });
        assert_eq!(presence.list("c", 2).len(), 2);
        let listed = presence.list("c", 2);
        assert_eq!(presence.list_bytes("c", 2), bytes_of_clients(listed.values()));
        assert!(presence.list_bytes("c", 3) > presence.list_bytes("c", 2));
        assert_eq!(presence.list_bytes("empty", 3), 0);
        presence.remove("c", &ids[0]);
        presence.remove("c", &ids[0]);
        assert_eq!(presence.stats("c"), PresenceStatsResult { num_clients: 2, num_users: 2 });
        presence.remove("c", &ids[1]);
        presence.remove("c", &ids[2]);
        assert_eq!(presence.stats("c"), PresenceStatsResult::default());
        assert!(presence.0.parts().all(|part| part.lock().is_empty()));
    }
}
