//! The connected sessions by user.

use std::collections::HashMap;
use std::sync::Arc;

use steadfast_flow::Striped;
use uuid::Uuid;

use crate::partition::SessionId;
use crate::session::SessionIdentity;

/// A user's sessions.
type UserSessions = HashMap<Uuid, (SessionId, Arc<SessionIdentity>)>;

/// The connected sessions, by user.
pub struct Users {
    sessions: Striped<HashMap<String, UserSessions>>,
    /// Sessions of a user; 0: no limit.
    limit: usize,
}

impl Users {
    pub(crate) fn new(limit: usize) -> Self {
        Self { sessions: Striped::default(), limit }
    }

    /// Registers a session; `false` if its user has reached the session limit. With `alone`, the
    /// user's other sessions are given to `end`, unless the user is anonymous.
    pub(crate) fn enter(
        &self,
        session: SessionId,
        identity: &Arc<SessionIdentity>,
        alone: bool,
        end: impl Fn(SessionId),
    ) -> bool {
        let mut part = self.sessions.part(&identity.user).lock();
        let sessions = part.entry(identity.user.clone()).or_default();
        if alone && !identity.user.is_empty() {
            for (other, _) in sessions.values() {
                end(*other);
            }
        } else if self.limit > 0 && !identity.user.is_empty() && sessions.len() >= self.limit {
            return false;
        }
        sessions.insert(identity.client, (session, identity.clone()));
        true
    }

    /// Removes a session: the inverse of [`Users::enter`].
    pub(crate) fn exit(&self, session: SessionId, identity: &SessionIdentity) {
        let mut part = self.sessions.part(&identity.user).lock();
        if let Some(sessions) = part.get_mut(&identity.user) {
            if sessions.get(&identity.client).is_some_and(|(found, _)| *found == session) {
                sessions.remove(&identity.client);
            }
            if sessions.is_empty() {
                part.remove(&identity.user);
            }
        }
    }

    /// The sessions of a user; only that of `client`, if it is given.
    pub fn sessions_of(&self, user: &str, client: Option<Uuid>) -> Vec<(SessionId, Arc<SessionIdentity>)> {
        let part = self.sessions.part(user).lock();
        let sessions = part.get(user).into_iter().flatten();
        sessions.filter(|(id, _)| client.is_none_or(|client| client == **id)).map(|(_, found)| found.clone()).collect()
    }

    /// The numbers of connected sessions and users.
    pub fn counts(&self) -> (usize, usize) {
        let (mut sessions, mut users) = (0, 0);
        for part in self.sessions.parts() {
            let part = part.lock();
            users += part.len();
            sessions += part.values().map(HashMap::len).sum::<usize>();
        }
        (sessions, users)
    }
}
