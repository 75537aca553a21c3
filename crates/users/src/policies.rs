//! What operators do to named policies.

use std::fmt;

use steadfast_store::{Store, UserTexts};

use crate::error::UserError;
use crate::named_policy::{NamedPolicy, check_policy_name, named, record_name};
use crate::user::User;

/// The named policies of a pool.
pub struct NamedPolicies<'a> {
    pub(crate) store: &'a Store,
    pub(crate) now_ms: u64,
    /// The most users and named policies.
    pub(crate) records_max: usize,
}

impl fmt::Debug for NamedPolicies<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NamedPolicies")
    }
}

impl NamedPolicies<'_> {
    /// All, by name, with those that every pool has.
    ///
    /// # Errors
    /// [`UserError`].
    pub fn all(&self) -> Result<Vec<(String, NamedPolicy)>, UserError> {
        let texts = self.store.users().all()?;
        let found = |name: String| {
            let policy = known(&texts, &name)?;
            Ok((name, policy))
        };
        NamedPolicy::names(&texts).into_iter().map(found).collect()
    }

    /// The policy of a name.
    ///
    /// # Errors
    /// [`UserError`].
    pub fn get(&self, name: &str) -> Result<NamedPolicy, UserError> {
        known(&*self.store.users().all()?, name)
    }

    /// Makes the policy of a name, or changes it for all users that have it.
    ///
    /// # Errors
    /// [`UserError`].
    pub async fn set(&self, name: &str, policy: String) -> Result<NamedPolicy, UserError> {
        check_policy_name(name)?;
        let mut next = NamedPolicy { created_ms: self.now_ms, changed_ms: self.now_ms, policy };
        next.compiled()?;
        let record = record_name(name);
        let changed = self.store.users().change(&record, |texts| {
            match NamedPolicy::find(texts, name)? {
                Some(known) => next.created_ms = known.created_ms,
                None => check_room(texts, self.records_max)?,
            }
            Ok::<_, UserError>(Some(next.text()?))
        });
        changed.await?;
        tracing::info!(policy = name, "a named policy was set");
        Ok(next)
    }

    /// Removes the policy of a name, which no user may have.
    ///
    /// # Errors
    /// [`UserError`].
    pub async fn remove(&self, name: &str) -> Result<(), UserError> {
        check_policy_name(name)?;
        let record = record_name(name);
        let removed = self.store.users().change(&record, |texts| {
            if !texts.contains_key(&record) {
                return Err(UserError::NoSuchPolicy(name.to_owned()));
            }
            for (user, text) in texts.iter().filter(|(name, _)| named(name).is_none()) {
                if User::parse(text)?.permissions.attached.iter().any(|attached| attached == name) {
                    return Err(UserError::PolicyInUse { policy: name.to_owned(), user: user.clone() });
                }
            }
            Ok(None)
        });
        removed.await?;
        tracing::info!(policy = name, "a named policy was removed");
        Ok(())
    }
}

/// Refuses one more user or named policy than there may be.
pub(crate) fn check_room(texts: &UserTexts, records_max: usize) -> Result<(), UserError> {
    match texts.len() >= records_max {
        true => Err(UserError::Refused(format!(
            "there are {} users and named policies, the most: see access.users_max",
            texts.len()
        ))),
        false => Ok(()),
    }
}

/// The policy of a name.
///
/// # Errors
/// It does not exist, or cannot be read.
pub(crate) fn known(texts: &UserTexts, name: &str) -> Result<NamedPolicy, UserError> {
    NamedPolicy::find(texts, name)?.ok_or_else(|| UserError::NoSuchPolicy(name.to_owned()))
}
