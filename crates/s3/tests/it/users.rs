//! Users: what requests signed with their keys can do.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use steadfast_flow::Env;
use steadfast_minio::Administration;
use steadfast_s3::{EventTargets, S3Options};
use steadfast_users::{NewKey, Permissions, Seal, UserAction, Users};

use crate::common::{Answer, Call, Client, options, store};
use crate::edge::{OPERATIONS, prepare};
use crate::policies::{OF_ACCOUNT, RIGHTS, allow, ask, on_condition, set, statement};

/// A server with users.
pub struct Server {
    pub root: Client,
    pub users: Users,
}

/// A client with the key of a user.
fn client_of(c: &Client, key: &Value) -> Client {
    let mut signer = c.signer.clone();
    signer.access_key = key["access_key"].as_str().expect("a key").into();
    signer.secret_key = key["secret_key"].as_str().expect("a secret").into();
    Client { door: c.door.clone(), records: c.records.clone(), signer }
}

impl Server {
    pub async fn new() -> Self {
        Self::with(options()).await
    }

    pub async fn with(options: S3Options) -> Self {
        let store = store().await;
        let seal = Seal::parse(&Seal::generate().expect("a key")).expect("a key");
        let users = Users::open(store.clone(), Env::tokio(), seal, "access", 100).expect("users");
        let administration = Administration::new(users.clone(), store.clone(), Env::tokio(), Env::tokio());
        let options = S3Options { users: Some(users.clone()), administration: Some(administration), ..options };
        let root = Client::over(store, options);
        root.bucket("open").await;
        Self { root, users }
    }

    async fn user_with(&self, name: &str, permissions: Permissions, lifetime_ms: Option<u64>) -> Client {
        let key = Some(NewKey { lifetime_ms, ..NewKey::default() });
        let made = self.users.run(UserAction::Create { name: name.into(), permissions, key }).await.expect("created");
        client_of(&self.root, &made["key"])
    }

    /// A user with these grants.
    pub async fn user(&self, name: &str, grants: &[&str]) -> Client {
        self.user_with(name, granted(grants), None).await
    }

    /// A user with a policy of these statements.
    pub async fn user_by(&self, name: &str, statements: &[Value]) -> Client {
        self.user_with(name, by_policy(statements), None).await
    }
}

pub fn granted(grants: &[&str]) -> Permissions {
    Permissions { grants: grants.iter().map(|grant| (*grant).to_owned()).collect(), ..Permissions::default() }
}

fn by_policy(statements: &[Value]) -> Permissions {
    let mut statements = statements.to_vec();
    for statement in &mut statements {
        statement.as_object_mut().expect("an object").remove("Principal");
    }
    let policy = json!({ "Version": "2012-10-17", "Statement": statements });
    Permissions { policy: Some(policy.to_string()), ..Permissions::default() }
}

/// A statement about one user.
fn about(user: &str, mut statement: Value) -> Value {
    statement["Principal"] = json!({ "AWS": format!("arn:aws:iam::000000000000:user/{user}") });
    statement
}

/// How a request is signed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SignedBy {
    Header,
    HeaderV2,
    Url,
    UrlV2,
    Nothing,
}

pub async fn send(call: Call<'_>, by: SignedBy) -> Answer {
    let in_an_hour = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970") + Duration::from_secs(3600);
    match by {
        SignedBy::Header => call.send().await,
        SignedBy::HeaderV2 => call.send_v2().await,
        SignedBy::Url => call.headers_in_url().send_presigned(60).await,
        SignedBy::UrlV2 => call.send_presigned_v2(in_an_hour.as_secs()).await,
        SignedBy::Nothing => call.send_unsigned().await,
    }
}

/// The actions of `read`, `write` and `read-write` on objects.
const READ: &[&str] = &["GetObject", "GetObjectAttributes", "GetObjectTagging"];
const WRITE: &[&str] = &["PutObject", "PutObjectTagging", "AbortMultipartUpload", "ListMultipartUploadParts"];
const DELETE: &[&str] = &["DeleteObject", "DeleteObjectTagging"];

#[tokio::test]
async fn each_credential_can_use_its_operations_and_no_others() {
    let server = Server::new().await;
    let c = &server.root;
    for bucket in ["plain", "other", "public"] {
        c.bucket(bucket).await;
    }
    c.put("/plain/k", "0123456789").await.expect(200);
    set(c, "plain", &[allow(&["GetObject"], &["plain/*"])]).await;
    let everything = [about("disabled", allow(&["*"], &["open", "open/*"]))];
    let full = server.user("full", &["full"]).await;
    let of_bucket = server.user("of-bucket", &["full:open"]).await;
    let reader = server.user("reader", &["read:open"]).await;
    let writer = server.user("writer", &["write:open"]).await;
    let limited = server.user("limited", &["read-write:open/mine/*"]).await;
    let other = server.user("other", &["full:other"]).await;
    let nothing = server.user("nothing", &[]).await;
    let expired = server.user_with("expired", granted(&["full"]), Some(0)).await;
    let disabled = server.user("disabled", &["full"]).await;
    server.users.run(UserAction::Disable { name: "disabled".into(), disabled: true }).await.expect("disabled");
    let unknown = client_of(c, &json!({ "access_key": "NOSUCHKEY", "secret_key": "secretsecret" }));
    // The client, whether its key works, and whether it can take an action on `/open/k`,
    // `/open/mine/k`, the bucket, or the account.
    type Allows = fn(&str, &str) -> bool;
    let credentials: [(&str, &Client, bool, Allows); 11] = [
        ("root", c, true, |_, _| true),
        ("full", &full, true, |_, _| true),
        ("of-bucket", &of_bucket, true, |action, _| !matches!(action, "ListAllMyBuckets")),
        ("reader", &reader, true, |action, _| READ.contains(&action)),
        ("writer", &writer, true, |action, _| WRITE.contains(&action)),
        ("limited", &limited, true, |action, path| {
            let known = READ.contains(&action) || WRITE.contains(&action) || DELETE.contains(&action);
            known && path.starts_with("/mine/") || action == "GetBucketLocation"
        }),
        ("other", &other, true, |_, _| false),
        ("nothing", &nothing, true, |_, _| false),
        ("expired", &expired, false, |_, _| false),
        ("disabled", &disabled, false, |_, _| false),
        ("unknown", &unknown, false, |_, _| false),
    ];
    let of_account = [("ListBuckets", "GET", "", None)];
    let mut count = 0;
    for (name, client, works, allows) in credentials {
        for (operation, method, path, _) in OPERATIONS.iter().chain(&of_account) {
            let (_, actions) =
                RIGHTS.iter().chain(OF_ACCOUNT).find(|(known, _)| known == operation).expect("its actions");
            let mut paths = vec![(*path).to_owned()];
            if path.starts_with("/k") {
                paths.push(path.replacen("/k", "/mine/k", 1));
            }
            for path in paths {
                // Version 2 signs a part of the query string only.
                let plain = path.starts_with('/') && !path.contains('?');
                let ways = [SignedBy::Header, SignedBy::Url, SignedBy::HeaderV2, SignedBy::UrlV2];
                for by in ways.into_iter().take(if plain { 4 } else { 2 }) {
                    c.put("/open", "").await.expect(200);
                    c.put("/open/k", "0123456789").await.expect(200);
                    c.put("/open/mine/k", "0123456789").await.expect(200);
                    set(c, "open", &everything).await;
                    let target = if *operation == "ListBuckets" { "/".into() } else { format!("/open{path}") };
                    let body = match *operation {
                        "PutObjectTagging" => "<Tagging><TagSet></TagSet></Tagging>",
                        "DeleteObjects" => "<Delete><Object><Key>k</Key></Object></Delete>",
                        _ => "",
                    };
                    let answer = send(prepare(client, operation, method, &target).body(body), by).await;
                    count += 1;
                    let allowed = works && actions.iter().all(|action| allows(action, &path));
                    let denied = answer
                        .body
                        .as_ref()
                        .is_ok_and(|body| String::from_utf8_lossy(body).contains("<Code>AccessDenied</Code>"));
                    let refused = answer.status == 403 || denied;
                    assert_eq!(refused, !allowed, "{name}: {operation} {path} by {by:?}: {answer:?}");
                    if !works && *method != "HEAD" {
                        assert_eq!(answer.xml("Code"), "InvalidAccessKeyId", "{name}: {operation} by {by:?}");
                    }
                }
            }
        }
    }
    // Without a signature nothing but the policy of the bucket counts.
    set(c, "public", &[allow(&["*"], &["public", "public/*"])]).await;
    for (operation, method, path, _) in OPERATIONS {
        let answer = send(prepare(c, operation, method, &format!("/open{path}")), SignedBy::Nothing).await;
        assert_eq!(answer.status, 403, "{operation}: {answer:?}");
        c.put("/public", "").await.expect(200);
        c.put("/public/k", "0123456789").await.expect(200);
        set(c, "public", &[allow(&["*"], &["public", "public/*"])]).await;
        let answer = send(prepare(c, operation, method, &format!("/public{path}")), SignedBy::Nothing).await;
        let of_account = OF_ACCOUNT.iter().any(|(name, _)| name == operation);
        assert_eq!(answer.status == 403, of_account, "{operation}: {answer:?}");
    }
    assert!(count > 2000, "{count}");
}

#[tokio::test]
async fn the_policies_of_user_and_bucket_count_together() {
    let server = Server::new().await;
    let c = &server.root;
    c.put("/open/k", "data").await.expect(200);
    let ada = server.user("ada", &[]).await;
    let bob = server.user("bob", &["read:open"]).await;
    ada.get("/open/k").await.refused(403, "AccessDenied");
    bob.get("/open/k").await.expect(200);
    // The policy of the bucket gives to one user, and takes from another.
    let policy = [
        about("ada", allow(&["GetObject"], &["open/*"])),
        about("bob", statement("Deny", &["GetObject"], &["open/*"])),
    ];
    set(c, "open", &policy).await;
    ada.get("/open/k").await.expect(200);
    bob.get("/open/k").await.refused(403, "AccessDenied");
    ask(c, "GET", "/open/k").await.refused(403, "AccessDenied");
    c.get("/open/k").await.expect(200);
    // What everyone can do, users can do.
    set(c, "open", &[allow(&["GetObject"], &["open/*"])]).await;
    ada.get("/open/k").await.expect(200);
    // What a user's own policy denies is denied.
    let deny = statement("Deny", &["GetObject"], &["open/secret*"]);
    let cyd = server.user_by("cyd", &[allow(&["*"], &["*"]), deny]).await;
    c.put("/open/secret", "data").await.expect(200);
    cyd.get("/open/k").await.expect(200);
    cyd.get("/open/secret").await.refused(403, "AccessDenied");
    // A block of public access is about clients without keys.
    let block = "<PublicAccessBlockConfiguration><RestrictPublicBuckets>true</RestrictPublicBuckets>\
                 </PublicAccessBlockConfiguration>";
    c.put("/open?publicAccessBlock", block).await.expect(200);
    ada.get("/open/k").await.expect(200);
    ask(c, "GET", "/open/k").await.refused(403, "AccessDenied");
    // A policy can name only users that there are.
    let unknown = json!({ "Version": "2012-10-17", "Statement": [about("eve", allow(&["GetObject"], &["open/*"]))] });
    c.put("/open?policy", unknown.to_string()).await.refused(400, "MalformedPolicy");
}

#[tokio::test]
async fn each_user_has_the_keys_below_its_name() {
    let server = Server::new().await;
    let own = |actions: &[&str]| allow(actions, &["open/home/${aws:username}/*"]);
    let listing = on_condition(
        allow(&["ListBucket"], &["open"]),
        json!({ "StringLike": { "s3:prefix": "home/${aws:username}/*" } }),
    );
    for name in ["ada", "bob"] {
        let c = server.user_by(name, &[own(&["GetObject", "PutObject", "DeleteObject"]), listing.clone()]).await;
        c.put(&format!("/open/home/{name}/k"), name).await.expect(200);
        let listed = c.get(&format!("/open?list-type=2&prefix=home/{name}/")).await.expect(200);
        assert_eq!(listed.xml("Key"), format!("home/{name}/k"));
        for other in ["ada", "bob", "ada2", "*"].into_iter().filter(|other| *other != name) {
            c.put(&format!("/open/home/{other}/k"), "stolen").await.refused(403, "AccessDenied");
            c.get(&format!("/open/home/{other}/k")).await.refused(403, "AccessDenied");
            c.get(&format!("/open?list-type=2&prefix=home/{other}/")).await.refused(403, "AccessDenied");
        }
        c.get("/open?list-type=2").await.refused(403, "AccessDenied");
        c.get("/open?list-type=2&prefix=home/").await.refused(403, "AccessDenied");
        let copy = c.call("PUT", &format!("/open/home/{name}/stolen")).header("x-amz-copy-source", "/open/home/adx/k");
        copy.send().await.refused(403, "AccessDenied");
    }
}

#[tokio::test]
async fn absence_is_not_learnt_without_the_right_to_list() {
    let server = Server::new().await;
    let reader = server.user("reader", &["read:open"]).await;
    let lister = server.user("lister", &["read:open", "list:open"]).await;
    let by_prefix = server.user("by-prefix", &["read:open", "list:open/a/*"]).await;
    for (client, status) in [(&reader, 403), (&lister, 404), (&by_prefix, 403)] {
        for method in ["GET", "HEAD"] {
            assert_eq!(client.call(method, "/open/none").send().await.status, status);
            assert_eq!(client.call(method, "/open/none").send_presigned(60).await.status, status);
        }
    }
    // S3 tells anyone with a key which buckets there are.
    reader.get("/none/k").await.refused(404, "NoSuchBucket");
}

#[tokio::test]
async fn a_key_that_is_disabled_stops_at_once() {
    let server = Server::new().await;
    let ada = server.user("ada", &["read-write:open"]).await;
    let begun = ada.call("POST", "/open/large?uploads").send().await.expect(200).xml("UploadId").to_owned();
    let part = format!("/open/large?partNumber=1&uploadId={begun}");
    ada.put(&part, "part").await.expect(200);
    let url = || ada.call("GET", "/open/k");
    ada.put("/open/k", "data").await.expect(200);
    url().send_presigned(60).await.expect(200);
    let access_key = ada.signer.access_key.clone();
    let disable = |disabled| UserAction::KeyDisable { access_key: access_key.clone(), disabled };
    server.users.run(disable(true)).await.expect("disabled");
    ada.put(&part, "part").await.refused(403, "InvalidAccessKeyId");
    let complete = ada.call("POST", &format!("/open/large?uploadId={begun}"));
    complete.body("<CompleteMultipartUpload/>").send().await.refused(403, "InvalidAccessKeyId");
    url().send_presigned(60).await.refused(403, "InvalidAccessKeyId");
    server.users.run(disable(false)).await.expect("enabled");
    url().send_presigned(60).await.expect(200);
    // What the user may do changes at once, too.
    server.users.run(UserAction::Permit { name: "ada".into(), permissions: granted(&[]) }).await.expect("permitted");
    url().send_presigned(60).await.refused(403, "AccessDenied");
    server.users.run(UserAction::Remove { name: "ada".into() }).await.expect("removed");
    url().send_presigned(60).await.refused(403, "InvalidAccessKeyId");
}

struct AnyTarget;

impl EventTargets for AnyTarget {
    fn check(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}

fn set_targets<'c>(client: &'c Client, targets: &[&str]) -> Call<'c> {
    let rule = |target: &&str| {
        format!(
            "<QueueConfiguration><Id>{target}</Id><Queue>arn:steadfast:channel:::{target}</Queue>\
             <Event>s3:ObjectCreated:*</Event></QueueConfiguration>"
        )
    };
    let rules: String = targets.iter().map(rule).collect();
    let call = client.call("PUT", "/open?notification").header("x-amz-skip-destination-validation", "true");
    call.body(format!("<NotificationConfiguration>{rules}</NotificationConfiguration>"))
}

#[tokio::test]
async fn only_root_names_the_targets_of_events() {
    let server = Server::with(S3Options { targets: Some(Arc::new(AnyTarget)), ..options() }).await;
    let ada = server.user("ada", &["full:open"]).await;
    set_targets(&ada, &["news"]).send().await.refused(403, "AccessDenied");
    set_targets(&server.root, &["news", "old"]).send().await.expect(200);
    set_targets(&ada, &["news", "others"]).send().await.refused(403, "AccessDenied");
    set_targets(&ada, &["news"]).send().await.expect(200);
    set_targets(&ada, &["news", "old"]).send().await.refused(403, "AccessDenied");
    set_targets(&ada, &[]).send().await.expect(200);
    assert!(!ada.get("/open?notification").await.expect(200).text().contains("news"));
}

#[tokio::test]
async fn conditions_look_at_the_signature() {
    let server = Server::new().await;
    server.root.put("/open/k", "data").await.expect(200);
    let get = |condition: Value| on_condition(allow(&["GetObject"], &["open/*"]), condition);
    let cases = [
        ("kind", json!({ "StringEquals": { "s3:authType": "REST-QUERY-STRING" } }), [false, false, true, true]),
        ("v4", json!({ "StringEquals": { "s3:signatureversion": "AWS4-HMAC-SHA256" } }), [true, false, true, false]),
        ("v2", json!({ "StringEquals": { "s3:signatureversion": "AWS" } }), [false, true, false, true]),
        ("young", json!({ "NumericLessThan": { "s3:signatureAge": 600_000 } }), [false, false, true, false]),
        ("old", json!({ "NumericGreaterThan": { "s3:signatureAge": 600_000 } }), [false; 4]),
        ("name", json!({ "StringEquals": { "aws:username": "name" } }), [true; 4]),
        ("other", json!({ "StringEquals": { "aws:username": "name" } }), [false; 4]),
    ];
    for (name, condition, works) in cases {
        let client = server.user_by(name, &[get(condition.clone())]).await;
        let ways = [SignedBy::Header, SignedBy::HeaderV2, SignedBy::Url, SignedBy::UrlV2];
        for (by, works) in ways.into_iter().zip(works) {
            let answer = send(client.call("GET", "/open/k"), by).await;
            assert_eq!(answer.status, if works { 200 } else { 403 }, "{condition} by {by:?}: {answer:?}");
        }
        // A second signature that nothing verifies does not count.
        let forged = client.call("GET", "/open/k").query("X-Amz-Signature", "0");
        forged.query("X-Amz-Date", &client.signer.amz_date).send_v2().await.refused(400, "InvalidArgument");
    }
}

#[tokio::test]
async fn buckets_are_created_and_listed_with_the_right_to_it() {
    let server = Server::new().await;
    let maker = server.user_by("maker", &[allow(&["CreateBucket"], &["team-*"])]).await;
    maker.put("/team-a", "").await.expect(200);
    maker.put("/other", "").await.refused(403, "AccessDenied");
    maker.put("/open", "").await.refused(403, "AccessDenied");
    maker.get("/").await.refused(403, "AccessDenied");
    maker.put("/team-a/k", "x").await.refused(403, "AccessDenied");
    let lister = server.user("lister", &["list"]).await;
    assert_eq!(lister.get("/").await.expect(200).xml_all("Name"), ["open", "team-a"]);
    lister.get("/open?list-type=2").await.expect(200);
    lister.get("/open/k").await.refused(404, "NoSuchKey");
    server.root.put("/open/k", "x").await.expect(200);
    lister.get("/open/k").await.refused(403, "AccessDenied");
}
