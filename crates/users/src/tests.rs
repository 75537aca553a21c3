//! Users of a pool in memory.

use std::sync::Arc;

use serde_json::{Value, json};
use steadfast_access::{Policy, PolicyUse};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log};
use steadfast_store::{IndexKind, Store, StoreError, StoreOptions, UserTexts};

use crate::user::KEYS_MAX;
use crate::{Attachment, KeyPair, KeyRefusal, NewKey, Permissions, Seal, UserAction, Users};

const SEAL: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

struct Pool(Arc<dyn Disk>);

impl Pool {
    async fn new() -> Self {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(128 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &Env::tokio(), &format).await.expect("format");
        Self(disk)
    }

    async fn open(&self) -> Store {
        let opened = Store::open(self.0.clone(), IndexKind::memory(), Env::tokio(), StoreOptions::default());
        opened.await.expect("open").0
    }
}

fn users_of(store: &Store, seal: &str) -> Result<Users, String> {
    Users::open(store.clone(), Env::tokio(), Seal::parse(seal).expect("a key"), "rootkey", 3)
}

async fn users() -> Users {
    users_of(&Pool::new().await.open().await, SEAL).expect("users")
}

fn create(name: &str, grants: &[&str]) -> UserAction {
    let grants = grants.iter().map(|grant| (*grant).to_owned()).collect();
    let permissions = Permissions { grants, ..Permissions::default() };
    UserAction::Create { name: name.to_owned(), permissions, key: Some(NewKey::default()) }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

async fn refused(users: &Users, action: UserAction) -> String {
    users.run(action).await.expect_err("refused").to_string()
}

#[tokio::test]
async fn a_user_survives_a_restart_and_its_secret_is_sealed() {
    let pool = Pool::new().await;
    let store = pool.open().await;
    let users = users_of(&store, SEAL).expect("users");
    let made = users.run(create("ada", &["read:media"])).await.expect("created");
    let (access_key, secret_key) = (text(&made["key"]["access_key"]), text(&made["key"]["secret_key"]));
    let listed = users.run(UserAction::List {}).await.expect("listed").to_string();
    assert!(listed.contains(&access_key) && !listed.contains(&secret_key), "{listed}");
    assert!(!store.users().all().expect("texts")["ada"].contains(&secret_key));
    assert!(store.buckets().all().expect("buckets").is_empty(), "a user is no bucket");
    store.close().await.expect("closed");

    let store = pool.open().await;
    let users = users_of(&store, SEAL).expect("users");
    let key = users.key(&access_key).expect("its key");
    assert_eq!((key.secret(), key.account().name()), (&*secret_key, "ada"));
    assert_eq!(key.account().policies().len(), 1);
    // With another seal key, its key does not work, and a new one does.
    let users = users_of(&store, &SEAL.replace('0', "f")).expect("users");
    assert!(matches!(users.key(&access_key), Err(KeyRefusal::Sealed)));
    let rotated = UserAction::KeyRotate { access_key, overlap_ms: 0, key: NewKey::default() };
    let new = users.run(rotated).await.expect("rotated");
    assert_eq!(users.key(&text(&new["access_key"])).expect("a key").account().name(), "ada");
}

#[tokio::test]
async fn changes_count_at_once() {
    let users = users().await;
    let made = users.run(create("ada", &[])).await.expect("created");
    let first = text(&made["key"]["access_key"]);
    let disable = |disabled| UserAction::Disable { name: "ada".into(), disabled };
    let disable_key = |disabled| UserAction::KeyDisable { access_key: first.clone(), disabled };
    for (action, works) in
        [(disable(true), false), (disable_key(true), false), (disable(false), false), (disable_key(false), true)]
    {
        users.run(action).await.expect("done");
        assert_eq!(users.key(&first).is_ok(), works);
    }
    assert!(users.key(&first).expect("its key").account().policies().is_empty());
    let permissions = Permissions { grants: vec!["read".into()], ..Permissions::default() };
    users.run(UserAction::Permit { name: "ada".into(), permissions }).await.expect("permitted");
    assert_eq!(users.key(&first).expect("its key").account().policies().len(), 1);
    // Both keys work until the old one has expired.
    let rotate = |overlap_ms| UserAction::KeyRotate { access_key: first.clone(), overlap_ms, key: NewKey::default() };
    let second = text(&users.run(rotate(60_000)).await.expect("rotated")["access_key"]);
    assert!(users.key(&first).is_ok() && users.key(&second).is_ok());
    users.run(rotate(0)).await.expect("rotated");
    assert!(matches!(users.key(&first), Err(KeyRefusal::Unknown)));
    users.run(UserAction::KeyRemove { access_key: second.clone() }).await.expect("removed");
    assert!(matches!(users.key(&second), Err(KeyRefusal::Unknown)));
    let lived = NewKey { lifetime_ms: Some(0), ..NewKey::default() };
    let third = users.run(UserAction::KeyCreate { user: "ada".into(), key: lived }).await.expect("made");
    assert!(matches!(users.key(&text(&third["access_key"])), Err(KeyRefusal::Expired)));
    users.run(UserAction::Remove { name: "ada".into() }).await.expect("removed");
    assert_eq!(
        (users.has("ada").expect("known"), users.run(UserAction::List {}).await.expect("listed")),
        (false, json!([]))
    );
}

#[tokio::test]
async fn a_declared_user_is_created_once() {
    let users = users().await;
    let permissions = || Permissions { grants: vec!["read".into()], ..Permissions::default() };
    let pair = |access_key: &str| Some(KeyPair { access_key: access_key.into(), secret_key: "secretsecret".into() });
    for _ in 0..2 {
        assert!(!users.declare("app", permissions(), pair("first")).await.expect("declared"));
    }
    assert!(!users.declare("app", permissions(), pair("second")).await.expect("declared"));
    assert!(users.declare("app", Permissions::default(), None).await.expect("declared"), "it may do more");
    for access_key in ["first", "second"] {
        assert_eq!(users.key(access_key).expect("its key").account().policies().len(), 1);
    }
    // Another secret for the same access key counts.
    let renewed = KeyPair { access_key: "first".into(), secret_key: "another-secret".into() };
    assert!(!users.declare("app", permissions(), Some(renewed)).await.expect("declared"));
    assert_eq!(users.key("first").expect("its key").secret(), "another-secret");
    let taken = users.declare("other", permissions(), pair("first")).await.expect_err("refused");
    assert!(taken.to_string().contains("taken"), "{taken}");
}

#[tokio::test]
async fn wrong_actions_are_refused_and_change_nothing() {
    let users = users().await;
    for name in ["", "a/b", "a b", "root", "\u{0}", "é", &"x".repeat(65)] {
        assert!(refused(&users, create(name, &[])).await.contains("name"), "{name:?}");
    }
    assert!(refused(&users, create("ada", &["fly"])).await.contains("no grant"));
    let policy =
        |text: &str| Permissions { grants: Vec::new(), policy: Some(text.to_owned()), ..Permissions::default() };
    for text in ["", "{}", &"[".repeat(10_000), &format!("{:30000}", "x")] {
        let action = UserAction::Create { name: "ada".into(), permissions: policy(text), key: None };
        assert!(refused(&users, action).await.contains("invalid policy"), "{text:.20}");
    }
    let large = Permissions { grants: vec!["read:media/public/*".into(); 3000], ..Permissions::default() };
    assert!(
        refused(&users, UserAction::Create { name: "ada".into(), permissions: large, key: None })
            .await
            .contains("limit")
    );
    assert!(refused(&users, UserAction::Show { name: "ada".into() }).await.contains("no user"));
    users.run(create("ada", &[])).await.expect("created");
    assert!(refused(&users, create("ada", &[])).await.contains("exists"));
    let given = |access_key: &str, secret_key: &str| UserAction::KeyCreate {
        user: "ada".into(),
        key: NewKey { access_key: Some(access_key.into()), secret_key: Some(secret_key.into()), lifetime_ms: None },
    };
    assert!(refused(&users, given("rootkey", "secretsecret")).await.contains("taken"));
    assert!(refused(&users, given("good", "short")).await.contains("secret key must"));
    users.run(given("good", "secretsecret")).await.expect("made");
    assert!(refused(&users, create("good", &[])).await.contains("access key of another"));
    assert!(refused(&users, given("good", "secretsecret")).await.contains("taken"));
    users.run(create("bob", &[])).await.expect("created");
    let taken = match given("good", "secretsecret") {
        UserAction::KeyCreate { key, .. } => UserAction::KeyCreate { user: "bob".into(), key },
        other => other,
    };
    assert!(refused(&users, taken).await.contains("taken"), "of another user");
    assert!(refused(&users, given("bob", "secretsecret")).await.contains("taken"), "the name of another user");
    for _ in 2..KEYS_MAX {
        users.run(UserAction::KeyCreate { user: "ada".into(), key: NewKey::default() }).await.expect("made");
    }
    let one_more = UserAction::KeyCreate { user: "ada".into(), key: NewKey::default() };
    assert!(refused(&users, one_more).await.contains("the most"));
    users.run(create("cyd", &[])).await.expect("created");
    assert!(refused(&users, create("dan", &[])).await.contains("users_max"));
}

#[tokio::test]
async fn what_a_later_build_knows_of_a_user_is_refused_by_its_name() {
    let pool = Pool::new().await;
    let store = pool.open().await;
    let later = |_: &UserTexts| Ok::<_, StoreError>(Some(r#"{"created_ms":0,"groups":["x"]}"#.to_owned()));
    store.users().change("ada", later).await.expect("written");
    let why = users_of(&store, SEAL).expect_err("refused");
    assert!(why.contains("\"ada\"") && why.contains("groups"), "{why}");
    let none = |_: &UserTexts| Ok::<_, StoreError>(None);
    store.users().change("ada", none).await.expect("removed");
    // One that came while the server runs can be removed.
    let users = users_of(&store, SEAL).expect("users");
    store.users().change("ada", later).await.expect("written");
    users.run(UserAction::Remove { name: "ada".into() }).await.expect("removed");
    assert!(!users.has("ada").expect("known"));
}

/// A policy that allows one action everywhere.
fn allows(action: &str) -> String {
    json!({ "Version": "2012-10-17", "Statement": [{ "Effect": "Allow", "Action": action, "Resource": "*" }] })
        .to_string()
}

fn set(name: &str, action: &str) -> UserAction {
    UserAction::PolicySet { name: name.into(), policy: allows(action) }
}

fn policies_of(users: &Users, access_key: &str) -> Vec<Policy> {
    users.key(access_key).expect("its key").account().policies().iter().map(|policy| (**policy).clone()).collect()
}

fn policy(action: &str) -> Policy {
    Policy::parse(allows(action).as_bytes(), PolicyUse::User).expect("a policy")
}

#[tokio::test]
async fn a_named_policy_counts_for_all_users_that_have_it() {
    let pool = Pool::new().await;
    let store = pool.open().await;
    let users = users_of(&store, SEAL).expect("users");
    users.run(set("reports", "s3:GetObject")).await.expect("set");
    let permissions = Permissions { attached: vec!["reports".into()], ..Permissions::default() };
    let key = Some(NewKey::default());
    let made = users.run(UserAction::Create { name: "ada".into(), permissions, key }).await.expect("created");
    let ada = text(&made["key"]["access_key"]);
    let bob = text(&users.run(create("bob", &["read"])).await.expect("created")["key"]["access_key"]);
    let reports = ["reports".to_owned()];
    assert_eq!(users.attach("bob", &reports, Attachment::Add).await.expect("attached"), reports);
    assert!(users.attach("bob", &reports, Attachment::Add).await.expect("attached").is_empty(), "it has it already");
    assert_eq!(policies_of(&users, &ada), [policy("s3:GetObject")]);
    assert_eq!(policies_of(&users, &bob).len(), 2);
    users.run(set("reports", "s3:PutObject")).await.expect("set");
    assert_eq!(policies_of(&users, &ada), [policy("s3:PutObject")]);
    assert_eq!(policies_of(&users, &bob)[1], policy("s3:PutObject"));
    let remove = || UserAction::PolicyRemove { name: "reports".into() };
    assert!(refused(&users, remove()).await.contains("detach it first"));
    assert!(refused(&users, UserAction::Remove { name: "policy/reports".into() }).await.contains("no user"));
    assert!(refused(&users, set("one-more", "s3:GetObject")).await.contains("users_max"));
    store.close().await.expect("closed");

    let store = pool.open().await;
    let users = users_of(&store, SEAL).expect("users");
    assert_eq!(policies_of(&users, &ada), [policy("s3:PutObject")]);
    assert_eq!(users.all().expect("all").len(), 2, "a policy is no user");
    users.attach("ada", &["readonly".to_owned()], Attachment::Add).await.expect("attached");
    for name in ["ada", "bob"] {
        assert_eq!(users.attach(name, &reports, Attachment::Remove).await.expect("detached"), reports);
    }
    assert_eq!(policies_of(&users, &ada).len(), 1);
    users.run(remove()).await.expect("removed");
    assert!(refused(&users, remove()).await.contains("no policy"));
    assert!(refused(&users, UserAction::PolicyShow { name: "reports".into() }).await.contains("no policy"));
}

#[tokio::test]
async fn named_policies_that_cannot_be_are_refused() {
    let pool = Pool::new().await;
    let store = pool.open().await;
    let users = users_of(&store, SEAL).expect("users");
    for name in ["", "a/b", "a,b", "readonly", &"x".repeat(129)] {
        assert!(refused(&users, set(name, "s3:GetObject")).await.contains("policy"), "{name:?}");
    }
    for action in ["admin:*", "s3:Fly"] {
        assert!(refused(&users, set("reports", action)).await.contains("invalid policy"), "{action}");
    }
    assert!(refused(&users, UserAction::PolicyRemove { name: "readonly".into() }).await.contains("built in"));
    users.run(create("ada", &[])).await.expect("created");
    let attached = Permissions { attached: vec!["nothing".into()], ..Permissions::default() };
    let made = UserAction::Create { name: "bob".into(), permissions: attached.clone(), key: None };
    for action in [made, UserAction::Permit { name: "ada".into(), permissions: attached }] {
        assert!(refused(&users, action).await.contains("no policy"));
    }
    let unknown = users.attach("ada", &["readonly".to_owned(), "nothing".to_owned()], Attachment::Add).await;
    assert!(unknown.expect_err("refused").to_string().contains("no policy"));
    assert!(users.get("ada").expect("ada").attached.is_empty());
    // Without the policy a user could do more than it may: no user is served.
    let lost =
        |_: &UserTexts| Ok::<_, StoreError>(Some(r#"{"created_ms":0,"permissions":{"attached":["lost"]}}"#.to_owned()));
    store.users().change("cyd", lost).await.expect("written");
    let why = users_of(&store, SEAL).expect_err("refused");
    assert!(why.contains("\"cyd\"") && why.contains("\"lost\""), "{why}");
    users.run(UserAction::Remove { name: "cyd".into() }).await.expect("removed");
    let later = |_: &UserTexts| Ok::<_, StoreError>(Some(r#"{"created_ms":0,"since":1}"#.to_owned()));
    store.users().change("policy/new", later).await.expect("written");
    let why = users_of(&store, SEAL).expect_err("refused");
    assert!(why.contains("\"new\"") && why.contains("since"), "{why}");
    users.run(UserAction::PolicyRemove { name: "new".into() }).await.expect("removed");
    users_of(&store, SEAL).expect("users");
}

#[tokio::test]
async fn a_user_with_the_key_of_root_keeps_the_server_from_starting() {
    let store = Pool::new().await.open().await;
    let key = NewKey { access_key: Some("taken".into()), ..NewKey::default() };
    let action = UserAction::Create { name: "ada".into(), permissions: Permissions::default(), key: Some(key) };
    users_of(&store, SEAL).expect("users").run(action).await.expect("created");
    let opened = Users::open(store, Env::tokio(), Seal::parse(SEAL).expect("a key"), "taken", 3);
    assert!(opened.expect_err("refused").contains("taken"));
}
