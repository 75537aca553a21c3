//! The buckets and users that the configuration declares: they are created if they do not exist.

use std::path::Path;

use steadfast_access::{Policy, PolicyUse};
use steadfast_store::{BucketDocument, BucketSettings, Store};
use steadfast_users::{KeyPair, Permissions, Users};

use crate::config::{Config, UserSpec};

/// Creates the declared users, then the declared buckets, whose policies may name users.
///
/// # Errors
/// A declaration that cannot be read, as a message. One that the pool refuses is only reported: the
/// rest of the pool is served.
pub(super) async fn create(config: &Config, store: &Store, users: &Users) -> Result<(), String> {
    for spec in &config.access.users.0 {
        let wrong = |why| format!("access.users: {}: {why}", spec.name);
        let permissions = permissions_of(spec).map_err(wrong)?;
        let key = key_of(spec).map_err(wrong)?;
        match users.declare(&spec.name, permissions, key).await {
            Ok(false) => {}
            Ok(true) => tracing::warn!(
                user = spec.name,
                "access.users: the user exists and may do something else than declared: `steadfast user permit` changes that"
            ),
            Err(error) => tracing::error!(user = spec.name, %error, "access.users: the user is not as declared"),
        }
    }
    for spec in &config.buckets {
        if store.buckets().get(&spec.name).is_ok() {
            continue;
        }
        let document = spec.policy_file.as_deref().map(|file| read_policy(file, &spec.name)).transpose();
        let document = document.map_err(|why| format!("[[buckets]]: {}: {why}", spec.name))?;
        match create_bucket(&spec.name, document, store, users).await {
            Ok(()) => tracing::info!(bucket = spec.name, "the bucket was created"),
            Err(error) => tracing::error!(bucket = spec.name, error, "[[buckets]]: the bucket cannot be created now"),
        }
    }
    Ok(())
}

fn permissions_of(spec: &UserSpec) -> Result<Permissions, String> {
    let policy = match spec.policy_file.as_os_str().is_empty() {
        true => None,
        false => Some(read(&spec.policy_file)?),
    };
    let permissions = Permissions { grants: spec.grants.clone(), policy, ..Permissions::default() };
    permissions.check().map(|()| permissions)
}

fn key_of(spec: &UserSpec) -> Result<Option<KeyPair>, String> {
    let Some(secret_key) = spec.secret_key.read()? else { return Ok(None) };
    let pair = KeyPair { access_key: spec.access_key.clone(), secret_key };
    pair.check().map(|()| Some(pair))
}

fn read_policy(file: &Path, bucket: &str) -> Result<(String, Policy), String> {
    let document = read(file)?;
    let policy = Policy::parse(document.as_bytes(), PolicyUse::Bucket(bucket));
    policy.map(|policy| (document, policy)).map_err(|e| format!("{}: {e}", file.display()))
}

async fn create_bucket(
    name: &str,
    policy: Option<(String, Policy)>,
    store: &Store,
    users: &Users,
) -> Result<(), String> {
    let mut settings = BucketSettings::default();
    if let Some((document, policy)) = policy {
        for user in policy.users() {
            if !users.has(user).map_err(|e| e.to_string())? {
                return Err(format!("its policy names {user:?}, and there is no such user"));
            }
        }
        settings.set_document(BucketDocument::Policy, Some(document));
    }
    store.buckets().create(name, settings).await.map(drop).map_err(|e| e.to_string())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))
}
