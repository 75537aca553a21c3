//! Requests to the administration of a pool in memory.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log};
use steadfast_store::{IndexKind, Store, StoreOptions};
use steadfast_users::{KeyRefusal, Seal, Users};

use crate::{AdminCall, AdminOperation, Administration, payload};

const ROOT: (&str, &str) = ("rootkey", "root-secret");

const INVALID: (u16, &str) = (400, "XMinioAdminInvalidArgument");
const BAD_BODY: (u16, &str) = (400, "XMinioAdminConfigBadJSON");
const MALFORMED: (u16, &str) = (400, "XMinioMalformedIAMPolicy");
const NO_USER: (u16, &str) = (404, "XMinioAdminNoSuchUser");
const NO_KEY: (u16, &str) = (404, "XMinioInvalidIAMCredentials");
const NO_POLICY: (u16, &str) = (404, "XMinioAdminNoSuchPolicy");
const NOT_BUILT: (u16, &str) = (501, "NotImplemented");

struct Server {
    users: Users,
    administration: Administration,
}

impl Server {
    async fn new() -> Self {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(128 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &Env::tokio(), &format).await.expect("format");
        let (store, _) =
            Store::open(disk, IndexKind::memory(), Env::tokio(), StoreOptions::default()).await.expect("open");
        let seal = Seal::parse(&Seal::generate().expect("a key")).expect("a key");
        let users = Users::open(store.clone(), Env::tokio(), seal, ROOT.0, 100).expect("users");
        let administration = Administration::new(users.clone(), store, Env::tokio(), Env::tokio());
        Self { users, administration }
    }

    /// Sends a request as `madmin` does, and returns the status and the decrypted body.
    async fn send(&self, method: Method, name: &str, query: &str, body: Value) -> (u16, Value) {
        let operation = AdminOperation::find(&method, &format!("/minio/admin/v3/{name}")).expect("an operation");
        let mut bytes = body.to_string().into_bytes();
        if operation.takes_encrypted() {
            bytes = payload::encrypt(ROOT.1, &bytes).expect("encrypted");
        }
        let reply = self.administration.answer(call(operation, query, bytes)).await;
        let text = match operation.gives_encrypted() && reply.status.is_success() {
            true => payload::decrypt(ROOT.1, &reply.body).expect("encrypted"),
            false => reply.body,
        };
        let value = if text.is_empty() { Value::Null } else { serde_json::from_slice(&text).expect("JSON") };
        (reply.status.as_u16(), value)
    }

    async fn done(&self, method: Method, name: &str, query: &str, body: Value) -> Value {
        let (status, value) = self.send(method, name, query, body).await;
        assert!(matches!(status, 200 | 204), "{name}: {status} {value}");
        value
    }

    async fn refused(&self, method: Method, name: &str, query: &str, body: Value) -> (u16, String) {
        let (status, value) = self.send(method, name, query, body).await;
        (status, value["Code"].as_str().unwrap_or_else(|| panic!("{name}: {status} {value}")).to_owned())
    }

    async fn add_user(&self, name: &str, secret: &str) {
        let body = json!({ "secretKey": secret, "status": "enabled" });
        self.done(Method::PUT, "add-user", &format!("accessKey={name}"), body).await;
    }
}

fn call(operation: AdminOperation, query: &str, body: Vec<u8>) -> AdminCall {
    AdminCall {
        operation,
        query: query.to_owned(),
        access_key: ROOT.0.to_owned(),
        secret_key: ROOT.1.to_owned(),
        host: "localhost:9000".to_owned(),
        body: body.into(),
    }
}

fn policy(action: &str) -> Value {
    json!({ "Version": "2012-10-17", "Statement": [{ "Effect": "Allow", "Action": [action], "Resource": ["*"] }] })
}

#[tokio::test]
async fn a_script_makes_a_user_with_a_policy() {
    let server = Server::new().await;
    server.add_user("app", "app-secret-key").await;
    server.done(Method::PUT, "add-canned-policy", "name=media", policy("s3:GetObject")).await;
    let association = json!({ "policies": ["media", "readonly"], "user": "app" });
    let attached = server.done(Method::POST, "idp/builtin/policy/attach", "", association.clone()).await;
    assert_eq!(attached["policiesAttached"], json!(["media", "readonly"]));
    let again = server.refused(Method::POST, "idp/builtin/policy/attach", "", association).await;
    assert_eq!(again, (400, "XMinioAdminPolicyChangeAlreadyApplied".to_owned()));
    let key = server.users.key("app").expect("its key");
    assert_eq!((key.secret(), key.account().policies().len()), ("app-secret-key", 2));
    let user = json!({ "policyName": "media,readonly", "status": "enabled" });
    assert_eq!(server.done(Method::GET, "user-info", "accessKey=app", Value::Null).await, user);
    assert_eq!(server.done(Method::GET, "list-users", "", Value::Null).await, json!({ "app": user }));
    let policies = server.done(Method::GET, "list-canned-policies", "", Value::Null).await;
    assert_eq!(policies["media"], policy("s3:GetObject"));
    assert_eq!(policies.as_object().expect("a map").len(), 4);
    let shown = server.done(Method::GET, "info-canned-policy", "name=media&v=2", Value::Null).await;
    assert_eq!((&shown["PolicyName"], &shown["Policy"]), (&json!("media"), &policy("s3:GetObject")));
    let shown = server.done(Method::GET, "info-canned-policy", "name=media", Value::Null).await;
    assert_eq!(shown, policy("s3:GetObject"));
    let mappings = server.done(Method::GET, "idp/builtin/policy-entities", "policy=media", Value::Null).await;
    assert_eq!(mappings["policyMappings"], json!([{ "policy": "media", "users": ["app"], "groups": [] }]));
    assert_eq!(mappings["userMappings"], json!([]));
    // The same script again gives the user another secret and leaves its policies.
    server.add_user("app", "another-secret").await;
    let key = server.users.key("app").expect("its key");
    assert_eq!((key.secret(), key.account().policies().len()), ("another-secret", 2));
    let query = "policyName=readwrite,media&userOrGroup=app&isGroup=false";
    server.done(Method::PUT, "set-user-or-group-policy", query, Value::Null).await;
    assert_eq!(server.users.get("app").expect("app").attached, ["media", "readwrite"]);
    let removed = server.refused(Method::DELETE, "remove-canned-policy", "name=media", Value::Null).await;
    assert_eq!(removed, (400, "XMinioIAMPolicyInUse".to_owned()));
    let association = json!({ "policies": ["media"], "user": "app" });
    let detached = server.done(Method::POST, "idp/builtin/policy/detach", "", association).await;
    assert_eq!(detached["policiesDetached"], json!(["media"]));
    server.done(Method::DELETE, "remove-canned-policy", "name=media", Value::Null).await;
    server.done(Method::PUT, "set-user-status", "accessKey=app&status=disabled", Value::Null).await;
    assert!(matches!(server.users.key("app"), Err(KeyRefusal::Disabled)));
    server.add_user("app", "another-secret").await;
    server.users.key("app").expect("it is enabled again");
    server.done(Method::DELETE, "remove-user", "accessKey=app", Value::Null).await;
    assert!(matches!(server.users.key("app"), Err(KeyRefusal::Unknown)));
    let disabled = json!({ "secretKey": "app-secret-key", "status": "disabled" });
    server.done(Method::PUT, "add-user", "accessKey=app", disabled).await;
    assert!(matches!(server.users.key("app"), Err(KeyRefusal::Disabled)));
}

#[tokio::test]
async fn keys_are_made_changed_and_removed() {
    let server = Server::new().await;
    server.add_user("app", "app-secret-key").await;
    let end = "2100-01-01T00:00:00Z";
    let new = json!({ "targetUser": "app", "accessKey": "second", "secretKey": "second-secret", "expiration": end });
    let made = server.done(Method::PUT, "add-service-account", "", new).await;
    let credentials = json!({ "accessKey": "second", "secretKey": "second-secret", "expiration": end });
    assert_eq!(made["credentials"], credentials);
    assert_eq!(server.users.key("second").expect("a key").account().name(), "app");
    let third = json!({ "targetUser": "app", "accessKey": "third", "policy": { "Version": "", "Statement": null } });
    server.done(Method::PUT, "add-service-account", "", third).await;
    // A key of root is a user of that name.
    server.done(Method::PUT, "add-service-account", "", json!({ "accessKey": "all", "secretKey": "all-secret" })).await;
    let limited = json!({ "targetUser": ROOT.0, "accessKey": "few", "policy": policy("s3:GetObject") });
    server.done(Method::PUT, "add-service-account", "", limited).await;
    assert_eq!(server.users.get("all").expect("all").attached, ["readwrite"]);
    assert_eq!(server.users.get("few").expect("few").policy, Some(policy("s3:GetObject")));

    let listed = server.done(Method::GET, "list-service-accounts", "user=app", Value::Null).await;
    let mut names: Vec<&str> =
        listed["accounts"].as_array().expect("a list").iter().filter_map(|key| key["accessKey"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["second", "third"]);
    let never = "1970-01-01T00:00:00Z";
    let times = listed["accounts"].as_array().expect("a list").iter().map(|key| key["expiration"].as_str());
    assert!(times.clone().any(|time| time == Some(never)) && times.clone().any(|time| time == Some(end)));
    for (query, users) in [
        ("listType=all&all=true", 4),
        ("listType=users-only&all=true", 4),
        ("listType=svcacc-only&all=true", 1),
        ("listType=sts-only&all=true", 0),
        ("listType=all&users=app&users=few", 2),
        ("listType=all", 1),
    ] {
        let listed = server.done(Method::GET, "list-access-keys-bulk", query, Value::Null).await;
        assert_eq!(listed.as_object().expect("a map").len(), users, "{query}: {listed}");
    }
    let shown = server.done(Method::GET, "info-service-account", "accessKey=few", Value::Null).await;
    let document: Value = serde_json::from_str(shown["policy"].as_str().expect("a text")).expect("JSON");
    assert_eq!((&shown["accountStatus"], document), (&json!("on"), policy("s3:GetObject")));

    let update = |body| server.done(Method::POST, "update-service-account", "accessKey=second", body);
    update(json!({ "newSecretKey": "newer-secret" })).await;
    assert_eq!(server.users.key("second").expect("a key").secret(), "newer-secret");
    update(json!({ "newStatus": "off" })).await;
    assert!(matches!(server.users.key("second"), Err(KeyRefusal::Disabled)));
    update(json!({ "newStatus": "on" })).await;
    assert_eq!(server.users.key("second").expect("a key").secret(), "newer-secret");
    server.done(Method::DELETE, "delete-service-account", "accessKey=second", Value::Null).await;
    assert!(matches!(server.users.key("second"), Err(KeyRefusal::Unknown)));
    let never = json!({ "newExpiration": "1970-01-01T00:00:00Z" });
    server.done(Method::POST, "update-service-account", "accessKey=third", json!({ "newExpiration": end })).await;
    assert_eq!(server.users.get_key("third").expect("a key").expires_ms, Some(4_102_444_800_000));
    server.done(Method::POST, "update-service-account", "accessKey=third", never).await;
    assert_eq!(server.users.get_key("third").expect("a key").expires_ms, None);
}

#[tokio::test]
async fn wrong_requests_get_errors_of_minio_and_change_nothing() {
    let server = Server::new().await;
    server.add_user("app", "app-secret-key").await;
    server.add_user("other", "other-secret-key").await;
    let second = json!({ "targetUser": "other", "accessKey": "second", "secretKey": "second-secret" });
    server.done(Method::PUT, "add-service-account", "", second).await;
    server.done(Method::PUT, "add-canned-policy", "name=reports", policy("s3:GetObject")).await;
    let before = server.users.all().expect("users").len();
    let new = |secret: &str| json!({ "secretKey": secret, "status": "enabled" });
    let association = |policies: &[&str], of: &str| json!({ "policies": policies, of: "app" });
    const ADD: (Method, &str) = (Method::PUT, "add-user");
    const ADD_KEY: (Method, &str) = (Method::PUT, "add-service-account");
    const UPDATE_KEY: (Method, &str) = (Method::POST, "update-service-account");
    const REMOVE: (Method, &str) = (Method::DELETE, "remove-user");
    const STATUS: (Method, &str) = (Method::PUT, "set-user-status");
    const SET: (Method, &str) = (Method::PUT, "add-canned-policy");
    const ATTACH: (Method, &str) = (Method::POST, "idp/builtin/policy/attach");
    const REPLACE: (Method, &str) = (Method::PUT, "set-user-or-group-policy");
    let misspelled = json!({ "version": "2012-10-17", "statement": policy("s3:GetObject")["Statement"] });
    let end = |time: &str| json!({ "expiration": time });
    let refusals = [
        (ADD, "accessKey=rootkey", new("long-enough"), INVALID),
        (ADD, "accessKey=a%2Fb", new("long-enough"), INVALID),
        (ADD, "accessKey=policy%2Freports", new("long-enough"), INVALID),
        (ADD, "accessKey=ab%00", new("long-enough"), INVALID),
        (ADD, "", new("long-enough"), INVALID),
        (ADD, "accessKey=bob", new("short"), INVALID),
        (ADD, "accessKey=bob", json!("text"), BAD_BODY),
        (ADD, "accessKey=bob", json!({ "secretKey": "long-enough" }), INVALID),
        (ADD, "accessKey=bob", json!({ "secretKey": "long-enough", "status": "on" }), INVALID),
        (ADD, "accessKey=bob", json!({ "secretKey": "long-enough", "status": "enabled", "policy": "no" }), NO_POLICY),
        (ADD, "accessKey=second", new("long-enough"), INVALID),
        (ADD_KEY, "", json!({ "targetUser": "other", "accessKey": "app", "secretKey": "long-enough" }), INVALID),
        (ADD_KEY, "", json!({ "targetUser": "second", "accessKey": "other", "secretKey": "long-enough" }), NO_USER),
        (ADD_KEY, "", json!({ "targetUser": "app", "accessKey": "other", "secretKey": "long-enough" }), INVALID),
        ((Method::GET, "user-info"), "accessKey=bob", Value::Null, NO_USER),
        ((Method::GET, "user-info"), "accessKey=policy%2Freports", Value::Null, NO_USER),
        (REMOVE, "accessKey=bob", Value::Null, NO_USER),
        (REMOVE, "accessKey=policy%2Freports", Value::Null, NO_USER),
        (STATUS, "accessKey=app&status=off", Value::Null, INVALID),
        (STATUS, "accessKey=policy%2Freports&status=disabled", Value::Null, NO_USER),
        (SET, "name=p", policy("admin:*"), MALFORMED),
        (SET, "name=readonly", policy("s3:*"), INVALID),
        (SET, "name=a%2Fb", policy("s3:*"), INVALID),
        ((Method::GET, "info-canned-policy"), "name=no", Value::Null, NO_POLICY),
        ((Method::DELETE, "remove-canned-policy"), "name=no", Value::Null, NO_POLICY),
        (ATTACH, "", association(&["no"], "user"), NO_POLICY),
        (ATTACH, "", association(&["readonly"], "group"), NOT_BUILT),
        (ATTACH, "", association(&[], "user"), (400, "XMinioAdminPolicyChangeAlreadyApplied")),
        (REPLACE, "policyName=readonly&userOrGroup=app&isGroup=true", Value::Null, NOT_BUILT),
        (REPLACE, "policyName=readonly,no&userOrGroup=app", Value::Null, NO_POLICY),
        (ADD_KEY, "", json!({ "targetUser": "app", "policy": policy("s3:*") }), NOT_BUILT),
        (ADD_KEY, "", json!({ "targetUser": "bob" }), NO_USER),
        (ADD_KEY, "", json!({ "TargetUser": "app" }), BAD_BODY),
        (ADD_KEY, "", end("2001-01-01T00:00:00Z"), INVALID),
        (ADD_KEY, "", end("1969-12-31T00:00:00Z"), INVALID),
        (ADD_KEY, "", end("soon"), INVALID),
        (ADD_KEY, "", json!({ "accessKey": ROOT.0, "secretKey": "long-enough" }), INVALID),
        (ADD_KEY, "", json!({ "policy": policy("admin:*") }), MALFORMED),
        (ADD_KEY, "", json!({ "policy": misspelled }), MALFORMED),
        (ADD_KEY, "", json!({ "policy": { "Version": "2012-10-17", "Statement": [] } }), MALFORMED),
        (ADD_KEY, "", json!({ "policy": [] }), MALFORMED),
        ((Method::GET, "info-service-account"), "accessKey=no", Value::Null, NO_KEY),
        ((Method::GET, "temporary-account-info"), "accessKey=app", Value::Null, NO_KEY),
        ((Method::DELETE, "delete-service-account"), "accessKey=app", Value::Null, NO_KEY),
        (UPDATE_KEY, "accessKey=app", json!({ "newStatus": "maybe" }), INVALID),
        (UPDATE_KEY, "accessKey=app", json!({ "newSecretKey": "x" }), INVALID),
        (UPDATE_KEY, "accessKey=app", json!({ "newPolicy": policy("s3:*") }), NOT_BUILT),
        ((Method::GET, "list-service-accounts"), "user=bob", Value::Null, NO_USER),
    ];
    for ((method, name), query, body, (status, code)) in refusals {
        let label = format!("{name}?{query} {body}");
        assert_eq!(server.refused(method, name, query, body).await, (status, code.to_owned()), "{label}");
    }
    // An effect given twice is refused; the first is not dropped.
    let twice =
        r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Effect":"Allow","Action":"s3:*","Resource":"*"}]}"#;
    let body = payload::encrypt(ROOT.1, format!(r#"{{"accessKey":"few","policy":{twice}}}"#).as_bytes());
    let reply = server.administration.answer(call(AdminOperation::AddKey, "", body.expect("encrypted"))).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert_eq!(server.users.all().expect("users").len(), before);
    assert!(server.users.get("app").expect("app").attached.is_empty());
    assert_eq!(server.users.key("app").expect("its key").secret(), "app-secret-key");
}

#[tokio::test]
async fn a_body_that_another_secret_has_encrypted_is_refused() {
    let server = Server::new().await;
    let text = br#"{"secretKey":"long-enough","status":"enabled"}"#;
    for body in [payload::encrypt("another", text).expect("encrypted"), text.to_vec(), Vec::new(), vec![0xff; 100]] {
        assert_eq!(
            server.administration.answer(call(AdminOperation::AddUser, "accessKey=bob", body)).await.status,
            StatusCode::BAD_REQUEST
        );
    }
    assert!(!server.users.has("bob").expect("known"));
}

#[tokio::test]
async fn the_state_of_the_server_is_shown() {
    let server = Server::new().await;
    let info = server.done(Method::GET, "info", "", Value::Null).await;
    assert_eq!((&info["mode"], &info["backend"]["onlineDisks"]), (&json!("online"), &json!(1)));
    let drive = &info["servers"][0]["drives"][0];
    assert_eq!((&info["servers"][0]["endpoint"], &drive["state"]), (&json!("localhost:9000"), &json!("ok")));
    let space = |field: &str| drive[field].as_u64().expect("bytes");
    assert!(space("totalspace") == space("usedspace") + space("availspace") && space("totalspace") > 0, "{drive}");
}
