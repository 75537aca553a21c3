//! The users of a pool: who signs a request, and what operators change.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use steadfast_flow::Env;
use steadfast_store::{Store, StoreError, UserTexts};

use crate::account::Account;
use crate::action::{Attachment, KeyChange, NewKey, UserAction};
use crate::directory::{Directory, KeyRefusal, SigningKey};
use crate::error::UserError;
use crate::key_pair::KeyPair;
use crate::named_policy::{NamedPolicy, named};
use crate::permissions::Permissions;
use crate::policies::{self, NamedPolicies, check_room};
use crate::seal::Seal;
use crate::summary::{KeySummary, UserSummary};
use crate::user::{KEYS_MAX, StoredKey, User, check_name};

/// The users of a pool. Cloning shares them.
#[derive(Clone)]
pub struct Users(Arc<Shared>);

struct Shared {
    store: Store,
    env: Env,
    seal: Seal,
    /// The access key of the root identity: no user can have it.
    root: String,
    users_max: usize,
    directory: ArcSwap<Directory>,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({:?})", self.0.directory.load())
    }
}

impl Users {
    /// Reads the users of a pool. `root` is the access key of the root identity.
    ///
    /// # Errors
    /// A user that this build cannot read, as a message.
    pub fn open(store: Store, env: Env, seal: Seal, root: &str, users_max: usize) -> Result<Self, String> {
        let directory = ArcSwap::default();
        let users = Self(Arc::new(Shared { store, env, seal, root: root.to_owned(), users_max, directory }));
        match users.directory() {
            // While users are in doubt no key but the root identity's works.
            Ok(_) | Err(StoreError::Doubtful(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
        let sealed = users.0.directory.load().sealed_otherwise();
        if sealed > 0 {
            tracing::error!(
                "{sealed} access keys were sealed with another seal key and do not work: start with that key, or make new \
                 ones with `steadfast key rotate`"
            );
        }
        if users.key(root).is_ok() {
            return Err(format!("the access key {root} is that of a user: give the server another one"));
        }
        Ok(users)
    }

    /// The key that signs requests with this access key.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    pub fn key(&self, access_key: &str) -> Result<Arc<SigningKey>, KeyRefusal> {
        let directory = self.directory()?;
        let key = directory.key(access_key).ok_or(KeyRefusal::Unknown)?;
        key.check(self.0.env.wall_ms())?;
        Ok(key.clone())
    }

    /// The account of a key that [`Users::key`] found a moment ago, with this secret; `None`: it
    /// has changed meanwhile. Asks the pool nothing.
    pub fn account(&self, access_key: &str, secret: &str) -> Option<Arc<Account>> {
        let directory = self.0.directory.load();
        let key = directory.key(access_key).filter(|key| key.secret() == secret)?;
        Some(key.account().clone())
    }

    /// Whether there is a user of this name.
    ///
    /// # Errors
    /// Those of [`steadfast_store::StoreUsers::all`].
    pub fn has(&self, name: &str) -> Result<bool, StoreError> {
        Ok(self.directory()?.has(name))
    }

    /// The name of the user of a canonical id, which [`steadfast_access::canonical_id`] makes.
    ///
    /// # Errors
    /// Those of [`steadfast_store::StoreUsers::all`].
    pub fn name_of(&self, canonical_id: &str) -> Result<Option<String>, StoreError> {
        Ok(self.directory()?.name_of(canonical_id).map(str::to_owned))
    }

    /// What operators see of all users, by name.
    ///
    /// # Errors
    /// [`UserError`].
    pub fn all(&self) -> Result<Vec<UserSummary>, UserError> {
        let (texts, now_ms) = (self.0.store.users().all()?, self.0.env.wall_ms());
        let users = texts.iter().filter(|(name, _)| named(name).is_none());
        users.map(|(name, text)| Ok(UserSummary::of(&User::parse(text)?, name, &self.0.seal, now_ms))).collect()
    }

    /// What operators see of a user.
    ///
    /// # Errors
    /// [`UserError`].
    pub fn get(&self, name: &str) -> Result<UserSummary, UserError> {
        let user = known(&*self.0.store.users().all()?, name)?;
        Ok(UserSummary::of(&user, name, &self.0.seal, self.0.env.wall_ms()))
    }

    /// What operators see of a key.
    ///
    /// # Errors
    /// [`UserError`].
    pub fn get_key(&self, access_key: &str) -> Result<KeySummary, UserError> {
        let user = self.get(&self.owner(access_key)?)?;
        let key = user.keys.into_iter().find(|key| key.access_key == access_key);
        key.ok_or_else(|| UserError::NoSuchKey(access_key.to_owned()))
    }

    /// The named policies.
    pub fn policies(&self) -> NamedPolicies<'_> {
        NamedPolicies { store: &self.0.store, now_ms: self.0.env.wall_ms(), records_max: self.0.users_max }
    }

    /// Changes which named policies a user has. Returns those of `policies` that it did not have
    /// and now has, or had and has no more.
    ///
    /// # Errors
    /// [`UserError`].
    pub async fn attach(&self, name: &str, policies: &[String], how: Attachment) -> Result<Vec<String>, UserError> {
        let changed = self.change(name, |user, texts| {
            let permissions = &mut user.permissions;
            let mut policies: Vec<String> = policies.to_vec();
            policies.sort_unstable();
            policies.dedup();
            let before = permissions.attached.clone();
            match how {
                Attachment::Add => permissions.attached.extend(policies.iter().cloned()),
                Attachment::Replace => permissions.attached = policies.clone(),
                Attachment::Remove => permissions.attached.retain(|policy| !policies.contains(policy)),
            }
            permissions.attached.sort_unstable();
            permissions.attached.dedup();
            if how != Attachment::Remove {
                check_attached(&policies, texts)?;
                permissions.check()?;
            }
            policies.retain(|policy| before.contains(policy) != permissions.attached.contains(policy));
            Ok(policies)
        });
        let changed = changed.await?;
        tracing::info!(user = name, policies = ?changed, ?how, "the named policies of a user were changed");
        Ok(changed)
    }

    /// Gives a key another secret, lets it work or not, or sets when it stops to work.
    ///
    /// # Errors
    /// [`UserError`].
    pub async fn change_key_to(&self, access_key: &str, next: KeyChange) -> Result<(), UserError> {
        let secret_key = next.secret_key;
        let pair = secret_key.map(|secret_key| KeyPair { access_key: access_key.to_owned(), secret_key });
        pair.as_ref().map(KeyPair::check).transpose()?;
        let sealed = pair.map(|pair| self.0.seal.seal(access_key, &pair.secret_key)).transpose()?;
        let changed = self.change_key(access_key, |key| {
            key.sealed = sealed.unwrap_or(std::mem::take(&mut key.sealed));
            key.disabled = next.disabled.unwrap_or(key.disabled);
            key.expires_ms = next.expires_ms.unwrap_or(key.expires_ms);
        });
        changed.await?;
        tracing::info!(access_key, "a key was changed");
        Ok(())
    }

    /// The users as they are now.
    fn directory(&self) -> Result<Arc<Directory>, StoreError> {
        let texts = self.0.store.users().all()?;
        let known = self.0.directory.load_full();
        if known.is_of(&texts) {
            return Ok(known);
        }
        let next = Arc::new(known.updated(texts, &self.0.seal).map_err(StoreError::Unsupported)?);
        self.0.directory.store(next.clone());
        Ok(next)
    }

    /// Does what an operator wants. The result is for the operator: only that of a new key has a
    /// secret.
    ///
    /// # Errors
    /// [`UserError`].
    pub async fn run(&self, action: UserAction) -> Result<Value, UserError> {
        let now_ms = self.0.env.wall_ms();
        match action {
            UserAction::Create { name, permissions, key } => self.create(&name, permissions, key, now_ms).await,
            UserAction::List {} => Ok(json!(self.all()?)),
            UserAction::Show { name } => Ok(json!(self.get(&name)?)),
            UserAction::Permit { name, permissions } => {
                permissions.check()?;
                let changed = self.change(&name, |user, texts| {
                    check_attached(&permissions.attached, texts)?;
                    user.permissions = permissions;
                    Ok(json!(UserSummary::of(user, &name, &self.0.seal, now_ms)))
                });
                let shown = changed.await?;
                tracing::info!(user = name, "the permissions of a user were set");
                Ok(shown)
            }
            UserAction::Disable { name, disabled } => {
                let changed = self.change(&name, |user, _| {
                    user.disabled = disabled;
                    Ok(json!(UserSummary::of(user, &name, &self.0.seal, now_ms)))
                });
                let shown = changed.await?;
                tracing::info!(user = name, disabled, "a user was changed");
                Ok(shown)
            }
            UserAction::Remove { name } => self.remove(&name).await,
            UserAction::PolicySet { name, policy } => {
                Ok(shown_policy(&name, &self.policies().set(&name, policy).await?))
            }
            UserAction::PolicyList {} => {
                let all = self.policies().all()?;
                Ok(all.iter().map(|(name, policy)| shown_policy(name, policy)).collect())
            }
            UserAction::PolicyShow { name } => Ok(shown_policy(&name, &self.policies().get(&name)?)),
            UserAction::PolicyRemove { name } => {
                self.policies().remove(&name).await?;
                Ok(json!({ "name": name }))
            }
            UserAction::KeyCreate { user: name, key } => {
                let new = self.change(&name, |user, _| self.add_key(user, &name, key, now_ms)).await?;
                tracing::info!(user = name, access_key = %new["access_key"], "a key was made");
                Ok(new)
            }
            UserAction::KeyDisable { access_key, disabled } => {
                let shown = self.change_key(&access_key, |key| key.disabled = disabled).await?;
                tracing::info!(access_key, disabled, "a key was changed");
                Ok(shown)
            }
            UserAction::KeyRotate { access_key, overlap_ms, key } => {
                let name = self.owner(&access_key)?;
                let end = now_ms.saturating_add(overlap_ms);
                let new = self
                    .change(&name, |user, _| {
                        let old =
                            user.keys.get_mut(&access_key).ok_or_else(|| UserError::NoSuchKey(access_key.clone()))?;
                        old.expires_ms = Some(old.expires_ms.map_or(end, |expires| expires.min(end)));
                        let expires_ms = old.expires_ms;
                        let mut new = self.add_key(user, &name, key, now_ms)?;
                        new["old"] = json!({ "access_key": access_key, "expires_ms": expires_ms });
                        Ok(new)
                    })
                    .await?;
                tracing::info!(user = name, access_key, new = %new["access_key"], "a key was rotated");
                Ok(new)
            }
            UserAction::KeyRemove { access_key } => {
                let name = self.owner(&access_key)?;
                let removed = self.change(&name, |user, _| {
                    user.keys.remove(&access_key).ok_or_else(|| UserError::NoSuchKey(access_key.clone()))?;
                    Ok(json!({ "access_key": access_key, "user": name }))
                });
                let shown = removed.await?;
                tracing::info!(user = name, access_key, "a key was removed");
                Ok(shown)
            }
        }
    }

    async fn create(
        &self,
        name: &str,
        permissions: Permissions,
        key: Option<NewKey>,
        now_ms: u64,
    ) -> Result<Value, UserError> {
        check_name(name)?;
        permissions.check()?;
        let mut made = Value::Null;
        let changed = self.0.store.users().change(name, |texts| {
            if texts.contains_key(name) {
                return Err(UserError::Refused(format!("the user {name} exists")));
            }
            check_room(texts, self.0.users_max)?;
            check_attached(&permissions.attached, texts)?;
            if self.directory()?.key(name).is_some() {
                return Err(UserError::Refused(format!("the name {name} is the access key of another user")));
            }
            let mut user = User { created_ms: now_ms, disabled: false, permissions, keys: Default::default() };
            let key = key.map(|key| self.add_key(&mut user, name, key, now_ms)).transpose()?;
            made = json!({ "user": UserSummary::of(&user, name, &self.0.seal, now_ms), "key": key });
            Ok(Some(user.text()?))
        });
        changed.await?;
        tracing::info!(user = name, "a user was created");
        Ok(made)
    }

    /// Creates a user that does not exist, with its key. One that exists stays as it is, but gets
    /// the key if it lacks it, and the secret if its key has another. Returns whether an existing
    /// user may do something else.
    ///
    /// # Errors
    /// Those of creating a user or a key.
    pub async fn declare(&self, name: &str, permissions: Permissions, key: Option<KeyPair>) -> Result<bool, UserError> {
        let texts = self.0.store.users().all()?;
        let new_key = |pair: KeyPair| NewKey {
            access_key: Some(pair.access_key),
            secret_key: Some(pair.secret_key),
            lifetime_ms: None,
        };
        if !texts.contains_key(name) {
            let key = key.map(new_key);
            self.run(UserAction::Create { name: name.to_owned(), permissions, key }).await?;
            return Ok(false);
        }
        let user = known(&texts, name)?;
        if let Some(pair) = key {
            match user.keys.get(&pair.access_key) {
                None => _ = self.run(UserAction::KeyCreate { user: name.to_owned(), key: new_key(pair) }).await?,
                Some(key) if self.0.seal.open(&pair.access_key, &key.sealed).as_ref() == Some(&pair.secret_key) => {}
                Some(_) => {
                    let next = KeyChange { secret_key: Some(pair.secret_key), ..KeyChange::default() };
                    self.change_key_to(&pair.access_key, next).await?;
                }
            }
        }
        Ok(user.permissions != permissions)
    }

    async fn remove(&self, name: &str) -> Result<Value, UserError> {
        // Also one that this build cannot read.
        let removed =
            self.0.store.users().change(name, |texts| match texts.contains_key(name) && named(name).is_none() {
                true => Ok(None),
                false => Err(UserError::NoSuchUser(name.to_owned())),
            });
        removed.await?;
        tracing::info!(user = name, "a user was removed");
        Ok(json!({ "name": name }))
    }

    /// Changes a user that exists. `change` gets all users too, and its result is that of the call.
    async fn change<T>(
        &self,
        name: &str,
        change: impl FnOnce(&mut User, &UserTexts) -> Result<T, UserError>,
    ) -> Result<T, UserError> {
        let mut done = None;
        let changed = self.0.store.users().change(name, |texts| {
            let mut user = known(texts, name)?;
            done = Some(change(&mut user, texts)?);
            Ok::<_, UserError>(Some(user.text()?))
        });
        changed.await?;
        Ok(done.expect("the store has called the closure"))
    }

    async fn change_key(&self, access_key: &str, change: impl FnOnce(&mut StoredKey)) -> Result<Value, UserError> {
        let name = self.owner(access_key)?;
        self.change(&name, |user, _| {
            let key = user.keys.get_mut(access_key).ok_or_else(|| UserError::NoSuchKey(access_key.to_owned()))?;
            change(key);
            Ok(json!(KeySummary::of(key, (access_key, &name), &self.0.seal, self.0.env.wall_ms())))
        })
        .await
    }

    /// The name of the user of a key.
    fn owner(&self, access_key: &str) -> Result<String, UserError> {
        let directory = self.directory()?;
        let key = directory.key(access_key).ok_or_else(|| UserError::NoSuchKey(access_key.to_owned()))?;
        Ok(key.account().name().to_owned())
    }

    /// Adds a key to a user and returns it with its secret. Expired keys make room. The
    /// caller holds the users, so no other key is added meanwhile.
    fn add_key(&self, user: &mut User, name: &str, key: NewKey, now_ms: u64) -> Result<Value, UserError> {
        user.keys.retain(|_, key| !key.is_expired(now_ms));
        if user.keys.len() >= KEYS_MAX {
            return Err(UserError::Refused(format!("the user {name} has {KEYS_MAX} keys, the most: remove one first")));
        }
        let generated = KeyPair::generate()?;
        let pair = KeyPair {
            access_key: key.access_key.unwrap_or(generated.access_key),
            secret_key: key.secret_key.unwrap_or(generated.secret_key),
        };
        pair.check()?;
        let KeyPair { access_key, secret_key } = pair;
        let directory = self.directory()?;
        // In MinIO the access key of a user is its name, so a key may have no name but that.
        let of_another = access_key != name && directory.has(&access_key);
        if access_key == self.0.root || of_another || directory.key(&access_key).is_some() {
            return Err(UserError::Refused(format!("the access key {access_key} is taken")));
        }
        let expires_ms = key.lifetime_ms.map(|lifetime| now_ms.saturating_add(lifetime));
        let sealed = self.0.seal.seal(&access_key, &secret_key)?;
        user.keys.insert(access_key.clone(), StoredKey { sealed, created_ms: now_ms, disabled: false, expires_ms });
        Ok(json!({ "access_key": access_key, "secret_key": secret_key, "user": name, "expires_ms": expires_ms }))
    }
}

fn known(texts: &UserTexts, name: &str) -> Result<User, UserError> {
    let text =
        texts.get(name).filter(|_| named(name).is_none()).ok_or_else(|| UserError::NoSuchUser(name.to_owned()))?;
    Ok(User::parse(text)?)
}

/// Refuses named policies that do not exist.
fn check_attached(names: &[String], texts: &UserTexts) -> Result<(), UserError> {
    names.iter().try_for_each(|name| policies::known(texts, name).map(drop))
}

/// What operators see of a named policy.
fn shown_policy(name: &str, policy: &NamedPolicy) -> Value {
    let document: Value = serde_json::from_str(&policy.policy).unwrap_or_default();
    json!({ "name": name, "created_ms": policy.created_ms, "changed_ms": policy.changed_ms, "policy": document })
}
