//! Finds the user of an access key.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use steadfast_access::Policy;
use steadfast_store::{StoreError, UserTexts};

use crate::account::Account;
use crate::named_policy::{NamedPolicy, named, record_name};
use crate::seal::Seal;
use crate::user::User;

/// A key that signs requests.
pub struct SigningKey {
    secret: Option<String>,
    disabled: bool,
    expires_ms: Option<u64>,
    account: Arc<Account>,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey(of {})", self.account.name())
    }
}

/// Why a key signs no request.
#[derive(Debug, thiserror::Error)]
pub enum KeyRefusal {
    /// No user has it.
    #[error("The AWS Access Key Id you provided does not exist in our records.")]
    Unknown,
    /// The key or its user is disabled.
    #[error("The access key is disabled.")]
    Disabled,
    /// Its time has passed.
    #[error("The access key has expired.")]
    Expired,
    /// Its secret was sealed with another key.
    #[error("The secret of the access key cannot be read.")]
    Sealed,
    /// The users cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SigningKey {
    /// Refuses a key that does not work now.
    pub(crate) fn check(&self, now_ms: u64) -> Result<(), KeyRefusal> {
        if self.disabled {
            return Err(KeyRefusal::Disabled);
        }
        if self.expires_ms.is_some_and(|end| end <= now_ms) {
            return Err(KeyRefusal::Expired);
        }
        if self.secret.is_none() { Err(KeyRefusal::Sealed) } else { Ok(()) }
    }

    /// The secret key that it signs with.
    pub fn secret(&self) -> &str {
        self.secret.as_deref().unwrap_or_default()
    }

    /// The user.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

/// A named policy that was read, and what it was read from.
struct KnownPolicy {
    text: Arc<str>,
    policy: Arc<Policy>,
}

type KnownPolicies = BTreeMap<String, KnownPolicy>;

/// A user that was read, and what it was read from.
struct KnownUser {
    text: Arc<str>,
    /// The named policies, as they were read.
    attached: Vec<(String, Arc<Policy>)>,
    canonical_id: String,
    keys: Vec<(String, Arc<SigningKey>)>,
}

/// The users of one state of the pool.
#[derive(Default)]
pub(crate) struct Directory {
    /// What it was read from.
    texts: Arc<UserTexts>,
    users: BTreeMap<String, Arc<KnownUser>>,
    policies: KnownPolicies,
    by_access_key: HashMap<String, Arc<SigningKey>>,
    by_canonical_id: HashMap<String, String>,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Directory({} users)", self.users.len())
    }
}

impl Directory {
    /// Whether it is that of these texts. It holds its own, so no other can be at their address.
    pub(crate) fn is_of(&self, texts: &Arc<UserTexts>) -> bool {
        Arc::ptr_eq(&self.texts, texts)
    }

    /// The directory of these texts. What has not changed since this one is taken from it.
    ///
    /// # Errors
    /// A user or a named policy that cannot be read, as a message.
    pub(crate) fn updated(&self, texts: Arc<UserTexts>, seal: &Seal) -> Result<Self, String> {
        let mut next = Self { texts: texts.clone(), ..Self::default() };
        for name in NamedPolicy::names(&texts) {
            let known = self.policies.get(&name);
            next.policies.insert(name.clone(), KnownPolicy::read(&name, &texts, known)?);
        }
        for (name, text) in texts.iter().filter(|(name, _)| named(name).is_none()) {
            let known = self.users.get(name).filter(|known| known.is_of(text, &next.policies));
            let user = match known {
                Some(known) => known.clone(),
                None => Arc::new(KnownUser::read(name, text, &next.policies, seal)?),
            };
            next.by_access_key.extend(user.keys.iter().cloned());
            next.by_canonical_id.insert(user.canonical_id.clone(), name.clone());
            next.users.insert(name.clone(), user);
        }
        Ok(next)
    }

    /// The key of this access key.
    pub(crate) fn key(&self, access_key: &str) -> Option<&Arc<SigningKey>> {
        self.by_access_key.get(access_key)
    }

    /// The name of the user of this canonical id.
    pub(crate) fn name_of(&self, canonical_id: &str) -> Option<&str> {
        self.by_canonical_id.get(canonical_id).map(String::as_str)
    }

    /// Whether there is a user of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.users.contains_key(name)
    }

    /// The access keys that cannot be read with this seal key.
    pub(crate) fn sealed_otherwise(&self) -> usize {
        self.by_access_key.values().filter(|key| key.secret.is_none()).count()
    }
}

impl KnownPolicy {
    /// Reads the policy of a name; `known` is what was read before.
    ///
    /// # Errors
    /// It cannot be read, as a message.
    fn read(name: &str, texts: &UserTexts, known: Option<&Self>) -> Result<Self, String> {
        let unreadable = |why| format!("the policy {name:?} cannot be read: {why}. Start the build that changed it");
        let text = texts.get(&record_name(name)).cloned().unwrap_or_else(|| Arc::from(""));
        if let Some(known) = known.filter(|known| known.text == text) {
            return Ok(Self { text, policy: known.policy.clone() });
        }
        let found = NamedPolicy::find(texts, name).map_err(unreadable)?;
        let policy = found.expect("a policy of the list of names").compiled().map_err(unreadable)?;
        Ok(Self { text, policy })
    }
}

impl KnownUser {
    /// Whether it was read from this text, with the named policies as they are now.
    fn is_of(&self, text: &Arc<str>, policies: &KnownPolicies) -> bool {
        let same = |name: &str, policy| policies.get(name).is_some_and(|now| Arc::ptr_eq(&now.policy, policy));
        Arc::ptr_eq(&self.text, text) && self.attached.iter().all(|(name, policy)| same(name, policy))
    }

    /// Reads a user.
    ///
    /// # Errors
    /// It cannot be read, or a named policy of it does not exist, as a message: without the policy
    /// it could do more.
    fn read(name: &str, text: &Arc<str>, policies: &KnownPolicies, seal: &Seal) -> Result<Self, String> {
        let unreadable = |why| format!("the user {name:?} cannot be read: {why}. Start the build that changed it");
        let user = User::parse(text).map_err(unreadable)?;
        let mut attached = Vec::with_capacity(user.permissions.attached.len());
        for policy in &user.permissions.attached {
            let found = policies.get(policy).ok_or_else(|| unreadable(format!("there is no policy {policy:?}")))?;
            attached.push((policy.clone(), found.policy.clone()));
        }
        let mut policies = user.permissions.own_policies().map_err(unreadable)?;
        policies.extend(attached.iter().map(|(_, policy)| policy.clone()));
        let account = Arc::new(Account::new(name, policies));
        let key = |(access_key, stored): (&String, &crate::user::StoredKey)| {
            let key = SigningKey {
                secret: seal.open(access_key, &stored.sealed),
                disabled: user.disabled || stored.disabled,
                expires_ms: stored.expires_ms,
                account: account.clone(),
            };
            (access_key.clone(), Arc::new(key))
        };
        let canonical_id = steadfast_access::canonical_id(Some(name));
        Ok(Self { text: text.clone(), attached, canonical_id, keys: user.keys.iter().map(key).collect() })
    }
}
