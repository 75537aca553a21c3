//! Access control lists of buckets and objects, and the ownership controls that turn them off.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::json;
use steadfast_access::canonical_id;
use steadfast_s3::S3Options;
use steadfast_users::UserAction;

use crate::common::{Answer, Client, options};
use crate::edge::{OPERATIONS, prepare};
use crate::policies::{OF_ACCOUNT, RIGHTS, allow, ask, on_condition, set, statement};
use crate::users::{Server, granted};

const EVERYONE: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
const AUTHENTICATED: &str = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers";

/// What each permission lets its grantee do. Source: S3, "Access control list (ACL) overview".
const BY_BUCKET: [(&str, &[&str]); 4] = [
    ("READ", &["ListBucket", "ListBucketVersions", "ListBucketMultipartUploads"]),
    ("WRITE", &["PutObject", "DeleteObject"]),
    ("READ_ACP", &["GetBucketAcl"]),
    ("WRITE_ACP", &["PutBucketAcl"]),
];
const BY_OBJECT: [(&str, &[&str]); 4] =
    [("READ", &["GetObject"]), ("WRITE", &[]), ("READ_ACP", &["GetObjectAcl"]), ("WRITE_ACP", &["PutObjectAcl"])];

/// A user as a list names it.
fn named(user: &str) -> String {
    format!(
        "<Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\"><ID>{user}</ID></Grantee>"
    )
}

fn group(uri: &str) -> String {
    format!(
        "<Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"Group\"><URI>{uri}</URI></Grantee>"
    )
}

/// The body of a list of one grant.
fn list(grantee: &str, permission: &str) -> String {
    lists(&[(grantee, permission)])
}

fn lists(grants: &[(&str, &str)]) -> String {
    let one =
        |(grantee, permission): &(&str, &str)| format!("<Grant>{grantee}<Permission>{permission}</Permission></Grant>");
    let grants: String = grants.iter().map(one).collect();
    let owner = canonical_id(None);
    format!(
        "<AccessControlPolicy><Owner><ID>{owner}</ID></Owner><AccessControlList>{grants}</AccessControlList></AccessControlPolicy>"
    )
}

async fn canned(c: &Client, path: &str, name: &str) -> Answer {
    c.call("PUT", path).header("x-amz-acl", name).send().await
}

fn is_refused(answer: &Answer) -> bool {
    let body = answer.body.as_ref().map(|body| String::from_utf8_lossy(body).into_owned()).unwrap_or_default();
    answer.status == 403 || body.contains("<Code>AccessDenied</Code>")
}

#[tokio::test]
async fn each_permission_gives_its_operations_and_no_others() {
    let server = Server::new().await;
    let c = &server.root;
    let (ada, bob) = (server.user("ada", &[]).await, server.user("bob", &[]).await);
    c.bucket("plain").await;
    c.put("/plain/k", "0123456789").await.expect(200);
    set(c, "plain", &[allow(&["GetObject"], &["plain/*"])]).await;
    let grantees = [
        (group(EVERYONE), [true, true, true]),
        (group(AUTHENTICATED), [false, true, true]),
        (named(&canonical_id(Some("ada"))), [false, true, false]),
        (named(&canonical_id(None)), [false, false, false]),
    ];
    let mut allowed = 0;
    for (operation, method, path, _) in OPERATIONS {
        let (_, actions) = RIGHTS.iter().chain(OF_ACCOUNT).find(|(known, _)| known == operation).expect("its actions");
        for (grantee, receives) in &grantees {
            for at in 0..=4 {
                let (of_bucket, of_object, given) = match at {
                    4 => ("FULL_CONTROL", "FULL_CONTROL", [BY_BUCKET, BY_OBJECT].concat()),
                    at => (BY_BUCKET[at].0, BY_OBJECT[at].0, vec![BY_BUCKET[at], BY_OBJECT[at]]),
                };
                for (user, receives) in [None, Some(&ada), Some(&bob)].into_iter().zip(receives) {
                    c.put("/open", "").await.expect(200);
                    c.put("/open/k", "0123456789").await.expect(200);
                    c.put("/open?acl", list(grantee, of_bucket)).await.expect(200);
                    c.put("/open/k?acl", list(grantee, of_object)).await.expect(200);
                    let target = format!("/open{path}");
                    let body = match *operation {
                        "DeleteObjects" => "<Delete><Object><Key>k</Key></Object></Delete>",
                        _ => "",
                    };
                    let call = prepare(user.unwrap_or(c), operation, method, &target).body(body);
                    let answer = if user.is_some() { call.send().await } else { call.send_unsigned().await };
                    let has = |action: &&str| given.iter().any(|(_, actions)| actions.contains(action));
                    let expected = *receives && *operation != "CreateBucket" && actions.iter().all(has);
                    allowed += usize::from(expected);
                    assert_eq!(is_refused(&answer), !expected, "{operation} by {of_bucket} of {grantee}: {answer:?}");
                }
            }
        }
    }
    assert!(allowed > 200, "{allowed}");
}

#[tokio::test]
async fn lists_are_answered_as_they_were_set() {
    let server = Server::new().await;
    let c = &server.root;
    server.user("ada", &[]).await;
    let ada = canonical_id(Some("ada"));
    c.put("/open/k", "x").await.expect(200);
    for path in ["/open?acl", "/open/k?acl"] {
        for (name, permissions, groups) in [
            ("private", vec!["FULL_CONTROL"], vec![]),
            ("public-read", vec!["FULL_CONTROL", "READ"], vec![EVERYONE]),
            ("public-read-write", vec!["FULL_CONTROL", "READ", "WRITE"], vec![EVERYONE, EVERYONE]),
            ("authenticated-read", vec!["FULL_CONTROL", "READ"], vec![AUTHENTICATED]),
            ("bucket-owner-full-control", vec!["FULL_CONTROL"], vec![]),
        ] {
            canned(c, path, name).await.expect(200);
            let answer = c.get(path).await.expect(200);
            assert_eq!((answer.xml_all("Permission"), answer.xml_all("URI")), (permissions, groups), "{name}");
            assert_eq!(answer.xml_all("ID"), [canonical_id(None), canonical_id(None)]);
            // `s3cmd setacl` sends back what was answered.
            let text = answer.text().to_owned();
            c.put(path, text.clone()).await.expect(200);
            assert_eq!(c.get(path).await.expect(200).text(), text);
        }
        for refused in ["log-delivery-write", "aws-exec-read"] {
            canned(c, path, refused).await.refused(501, "NotImplemented");
        }
        canned(c, path, "Private").await.refused(400, "InvalidArgument");
        c.put(path, "").await.refused(400, "MissingSecurityHeader");
        let granted = c.call("PUT", path).header("x-amz-grant-read", &format!("id=\"{ada}\", uri=\"{EVERYONE}\""));
        granted.header("x-amz-grant-write-acp", &format!("ID={ada}")).send().await.expect(200);
        let answer = c.get(path).await.expect(200);
        assert_eq!(answer.xml_all("Permission"), ["READ", "READ", "WRITE_ACP"]);
        assert_eq!(answer.xml_all("ID"), [ada.clone(), ada.clone(), canonical_id(None)]);
        assert_eq!(answer.xml_all("DisplayName"), ["ada", "ada", "steadfast"]);
        // A list without a grant leaves the owner all rights.
        c.put(path, lists(&[])).await.expect(200);
        assert!(c.get(path).await.expect(200).xml_all("Permission").is_empty());
        let unknown = named(&canonical_id(Some("bob")));
        c.put(path, list(&unknown, "READ")).await.refused(400, "InvalidArgument");
        c.put(path, list(&group("http://acs.amazonaws.com/groups/s3/LogDelivery"), "WRITE"))
            .await
            .refused(501, "NotImplemented");
        c.put(path, list(&group("http://example.com"), "READ")).await.refused(400, "InvalidArgument");
        c.put(path, list(&group(EVERYONE), "LIST")).await.refused(400, "MalformedACLError");
        let many = vec![(group(EVERYONE), "READ"); 101];
        let many: Vec<_> = many.iter().map(|(grantee, permission)| (grantee.as_str(), *permission)).collect();
        c.put(path, lists(&many)).await.refused(400, "MalformedACLError");
        c.put(path, lists(&many[..100])).await.expect(200);
        let another = lists(&[]).replace(&canonical_id(None), &ada);
        c.put(path, another).await.refused(403, "AccessDenied");
        for (header, value, code) in [
            ("x-amz-grant-read", "emailAddress=\"a@example.com\"", "UnresolvableGrantByEmailAddress"),
            ("x-amz-grant-read", "nonsense", "InvalidArgument"),
            ("x-amz-grant-read", "id=\"steadfast\"", "InvalidArgument"),
        ] {
            c.call("PUT", path).header(header, value).send().await.refused(400, code);
        }
        let both = c.call("PUT", path).header("x-amz-acl", "private").header("x-amz-grant-read", &format!("id={ada}"));
        both.send().await.refused(400, "InvalidRequest");
        c.call("PUT", path)
            .header("x-amz-acl", "private")
            .body(lists(&[]))
            .send()
            .await
            .refused(400, "UnexpectedContent");
        assert_eq!(c.get(path).await.expect(200).xml_all("Permission").len(), 100, "what was refused changed nothing");
    }
    canned(c, "/open/absent?acl", "private").await.refused(404, "NoSuchKey");
    canned(c, "/none?acl", "private").await.refused(404, "NoSuchBucket");
    ask(c, "PUT", "/open/k?acl").await.refused(403, "AccessDenied");
}

#[tokio::test]
async fn a_write_gives_its_object_a_list() {
    let server = Server::new().await;
    let c = &server.root;
    let writer = server.user("writer", &["write:open"]).await;
    let publisher = server.user("publisher", &["write:open", "acl:open/public/*"]).await;
    c.call("PUT", "/open/k").header("x-amz-acl", "public-read").body("x").send().await.expect(200);
    ask(c, "GET", "/open/k").await.expect(200);
    ask(c, "HEAD", "/open/k").await.expect(200);
    ask(c, "GET", "/open/k?acl").await.refused(403, "AccessDenied");
    // Tags leave the list, and another write does not.
    c.put("/open/k?tagging", "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>")
        .await
        .expect(200);
    ask(c, "GET", "/open/k").await.expect(200);
    let copied =
        c.call("PUT", "/open/k").header("x-amz-copy-source", "/open/k").header("x-amz-metadata-directive", "REPLACE");
    copied.send().await.expect(200);
    ask(c, "GET", "/open/k").await.refused(403, "AccessDenied");
    let copied = c.call("PUT", "/open/copy").header("x-amz-copy-source", "/open/k");
    copied.header("x-amz-acl", "public-read").send().await.expect(200);
    ask(c, "GET", "/open/copy").await.expect(200);
    c.call("PUT", "/open/plain").header("x-amz-copy-source", "/open/copy").send().await.expect(200);
    ask(c, "GET", "/open/plain").await.refused(403, "AccessDenied");
    c.put("/open/copy", "y").await.expect(200);
    ask(c, "GET", "/open/copy").await.refused(403, "AccessDenied");
    let begun = c.call("POST", "/open/parts?uploads").header("x-amz-acl", "public-read").send().await.expect(200);
    let upload = begun.xml("UploadId").to_owned();
    let part = c.put(&format!("/open/parts?partNumber=1&uploadId={upload}"), "z").await.expect(200);
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        part.header("etag").replace('"', "&quot;")
    );
    c.call("POST", &format!("/open/parts?uploadId={upload}")).body(body).send().await.expect(200);
    assert_eq!(ask(c, "GET", "/open/parts").await.expect(200).bytes(), b"z");
    // To make an object public is a right of its own.
    for (path, header, value, status) in [
        ("/open/w", "x-amz-acl", "private", 200),
        ("/open/w", "x-amz-acl", "bucket-owner-full-control", 200),
        ("/open/w", "x-amz-acl", "public-read", 403),
        ("/open/w", "x-amz-grant-read", EVERYONE, 403),
        ("/open/w?uploads", "x-amz-acl", "public-read", 403),
    ] {
        let value = if value == EVERYONE { format!("uri={EVERYONE}") } else { value.to_owned() };
        let method = if path.contains('?') { "POST" } else { "PUT" };
        writer.call(method, path).header(header, &value).send().await.expect(status);
        let published = path.replacen("/w", "/public/w", 1);
        publisher.call(method, path).header(header, &value).send().await.expect(status);
        publisher.call(method, &published).header(header, &value).send().await.expect(200);
    }
    canned(&writer, "/open/w?acl", "public-read").await.refused(403, "AccessDenied");
    canned(&publisher, "/open/public/w?acl", "private").await.expect(200);
    for (name, code) in [("log-delivery-write", 501), ("everyone", 400)] {
        c.call("PUT", "/open/k").header("x-amz-acl", name).body("x").send().await.expect(code);
    }
}

#[tokio::test]
async fn policies_and_blocks_count_more_than_lists() {
    let server = Server::new().await;
    let c = &server.root;
    let ada = server.user("ada", &[]).await;
    c.call("PUT", "/open/k").header("x-amz-acl", "public-read").body("x").send().await.expect(200);
    canned(c, "/open?acl", "public-read").await.expect(200);
    set(c, "open", &[statement("Deny", &["GetObject"], &["open/*"])]).await;
    ask(c, "GET", "/open/k").await.refused(403, "AccessDenied");
    ask(c, "GET", "/open").await.expect(200);
    c.call("DELETE", "/open?policy").send().await.expect(204);
    // With the right to list, an absent key is no secret.
    ask(c, "GET", "/open/k").await.expect(200);
    ask(c, "GET", "/open/absent").await.refused(404, "NoSuchKey");
    ada.get("/open/absent").await.refused(404, "NoSuchKey");
    canned(c, "/open?acl", "private").await.expect(200);
    ask(c, "GET", "/open/absent").await.refused(403, "AccessDenied");
    ask(c, "GET", "/open/k").await.expect(200);
    let block =
        |of: &str| format!("<PublicAccessBlockConfiguration><{of}>true</{of}></PublicAccessBlockConfiguration>");
    c.put("/open?publicAccessBlock", block("IgnorePublicAcls")).await.expect(200);
    ask(c, "GET", "/open/k").await.refused(403, "AccessDenied");
    ada.get("/open/k").await.refused(403, "AccessDenied");
    c.put("/open/k?acl", list(&named(&canonical_id(Some("ada"))), "READ")).await.expect(200);
    ada.get("/open/k").await.expect(200);
    c.put("/open?publicAccessBlock", block("BlockPublicAcls")).await.expect(200);
    for name in ["public-read", "authenticated-read", "public-read-write"] {
        canned(c, "/open?acl", name).await.refused(403, "AccessDenied");
        canned(c, "/open/k?acl", name).await.refused(403, "AccessDenied");
        c.call("PUT", "/open/k").header("x-amz-acl", name).body("y").send().await.refused(403, "AccessDenied");
        c.call("POST", "/open/k?uploads").header("x-amz-acl", name).send().await.refused(403, "AccessDenied");
    }
    canned(c, "/open?acl", "private").await.expect(200);
    assert_eq!(ada.get("/open/k").await.expect(200).bytes(), b"x");
}

fn ownership(name: &str) -> String {
    format!("<OwnershipControls><Rule><ObjectOwnership>{name}</ObjectOwnership></Rule></OwnershipControls>")
}

#[tokio::test]
async fn ownership_controls_turn_lists_off() {
    let server = Server::new().await;
    let c = &server.root;
    let controls = "/open?ownershipControls";
    c.get(controls).await.refused(404, "OwnershipControlsNotFoundError");
    c.call("PUT", "/open/k").header("x-amz-acl", "public-read").body("x").send().await.expect(200);
    canned(c, "/open?acl", "public-read").await.expect(200);
    for name in ["BucketOwnerPreferred", "ObjectWriter"] {
        c.put(controls, ownership(name)).await.expect(200);
        assert_eq!(c.get(controls).await.expect(200).xml("ObjectOwnership"), name);
        ask(c, "GET", "/open/k").await.expect(200);
    }
    c.put(controls, ownership("BucketOwnerEnforced")).await.refused(400, "InvalidBucketAclWithObjectOwnership");
    for wrong in [ownership("Mine"), "<OwnershipControls></OwnershipControls>".to_owned()] {
        c.put(controls, wrong).await.refused(400, "MalformedXML");
    }
    canned(c, "/open?acl", "private").await.expect(200);
    c.put(controls, ownership("BucketOwnerEnforced")).await.expect(200);
    ask(c, "GET", "/open/k").await.refused(403, "AccessDenied");
    assert_eq!(c.get("/open/k?acl").await.expect(200).xml_all("Permission"), ["FULL_CONTROL"]);
    for name in ["public-read", "private"] {
        canned(c, "/open?acl", name).await.refused(400, "AccessControlListNotSupported");
        canned(c, "/open/k?acl", name).await.refused(400, "AccessControlListNotSupported");
        let put = c.call("PUT", "/open/k").header("x-amz-acl", name).body("y");
        put.send().await.refused(400, "AccessControlListNotSupported");
    }
    let full = c.call("PUT", "/open/other").header("x-amz-acl", "bucket-owner-full-control").body("y");
    full.send().await.expect(200);
    c.put("/open/k?acl", list(&named(&canonical_id(None)), "FULL_CONTROL")).await.expect(200);
    c.call("DELETE", controls).send().await.expect(204);
    c.get(controls).await.refused(404, "OwnershipControlsNotFoundError");
    // A bucket can be made with all this.
    let made = |name: &'static str, header: &'static str, value: &'static str| {
        c.call("PUT", name).header(header, value).send()
    };
    made("/listed", "x-amz-acl", "public-read").await.expect(200);
    ask(c, "GET", "/listed").await.expect(200);
    made("/enforced", "x-amz-object-ownership", "BucketOwnerEnforced").await.expect(200);
    canned(c, "/enforced?acl", "public-read").await.refused(400, "AccessControlListNotSupported");
    made("/wrong", "x-amz-object-ownership", "Mine").await.refused(400, "InvalidArgument");
    let both = c.call("PUT", "/both").header("x-amz-object-ownership", "BucketOwnerEnforced");
    both.header("x-amz-acl", "public-read").send().await.refused(400, "InvalidBucketAclWithObjectOwnership");
    c.get("/both").await.refused(404, "NoSuchBucket");
    let maker = server.user_by("maker", &[allow(&["CreateBucket"], &["*"])]).await;
    for (header, value) in [("x-amz-acl", "public-read"), ("x-amz-object-ownership", "ObjectWriter")] {
        maker.call("PUT", "/made").header(header, value).send().await.refused(403, "AccessDenied");
    }
    maker.call("PUT", "/made").header("x-amz-acl", "private").send().await.expect(200);
}

#[tokio::test]
async fn the_setting_public_read_is_a_policy_beside_the_lists() {
    let c = Client::with(S3Options { public_read: ["open".to_owned()].into(), ..options() }).await;
    c.bucket("open").await;
    c.put("/open/k", "x").await.expect(200);
    canned(&c, "/open/k?acl", "public-read").await.expect(200);
    canned(&c, "/open/k?acl", "private").await.expect(200);
    ask(&c, "GET", "/open/k").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_object_in_place_of_a_public_one_is_never_read() {
    let c = Client::new().await;
    c.bucket("open").await;
    let put =
        |body: &'static str, name: &'static str| c.call("PUT", "/open/k").header("x-amz-acl", name).body(body).send();
    put("public", "public-read").await.expect(200);
    let ended = AtomicBool::new(false);
    let writes = async {
        for _ in 0..300 {
            put("secret", "private").await.expect(200);
            put("public", "public-read").await.expect(200);
        }
        ended.store(true, Relaxed);
    };
    let reads = async {
        while !ended.load(Relaxed) {
            let answer = ask(&c, "GET", "/open/k").await;
            match answer.status {
                200 => assert_eq!(answer.bytes(), b"public"),
                _ => _ = answer.refused(403, "AccessDenied"),
            }
        }
    };
    tokio::join!(writes, reads);
}

/// Sends a part to an upload, and completes it as another client.
async fn complete(c: &Client, part_of: &Client, path: &str, upload: &str) -> Answer {
    let part = part_of.put(&format!("{path}?partNumber=1&uploadId={upload}"), "z").await.expect(200);
    let tag = part.header("etag").replace('"', "&quot;");
    let part = format!("<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>");
    let body = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
    c.call("POST", &format!("{path}?uploadId={upload}")).body(body).send().await
}

#[tokio::test]
async fn only_its_initiator_makes_an_upload_public() {
    let server = Server::new().await;
    let c = &server.root;
    let writer = server.user("writer", &["read-write:open"]).await;
    let publisher = server.user("publisher", &["read-write:open", "acl:open"]).await;
    for (began, initiator) in [(c, canonical_id(None)), (&publisher, canonical_id(Some("publisher")))] {
        let begun = began.call("POST", "/open/k?uploads").header("x-amz-acl", "public-read").send().await.expect(200);
        let upload = begun.xml("UploadId").to_owned();
        complete(&writer, &writer, "/open/k", &upload).await.refused(403, "AccessDenied");
        let listed = c.get("/open?uploads").await.expect(200);
        assert_eq!(listed.xml_all("ID"), [initiator.clone(), canonical_id(None)]);
        let parts = c.get(&format!("/open/k?uploadId={upload}")).await.expect(200);
        assert!(parts.text().contains(&format!("<ID>{initiator}</ID>")), "{}", parts.text());
        complete(&publisher, &writer, "/open/k", &upload).await.expect(200);
        ask(c, "GET", "/open/k").await.expect(200);
        c.call("DELETE", "/open/k").send().await.expect(204);
    }
    // Without a list, each client with the right to write may complete it.
    let begun = c.call("POST", "/open/k?uploads").send().await.expect(200);
    complete(&writer, &writer, "/open/k", begun.xml("UploadId")).await.expect(200);
    // The completion of who began it needs no further right.
    server
        .users
        .run(UserAction::Permit { name: "publisher".into(), permissions: granted(&["write:open"]) })
        .await
        .expect("set");
    let limited =
        on_condition(allow(&["PutObjectAcl"], &["open/*"]), json!({"StringEquals": {"s3:x-amz-acl": "public-read"}}));
    set(c, "open", &[limited]).await;
    let begun = publisher.call("POST", "/open/k?uploads").header("x-amz-acl", "public-read").send().await.expect(200);
    complete(&publisher, &publisher, "/open/k", begun.xml("UploadId")).await.expect(200);
    ask(c, "GET", "/open/k").await.expect(200);
}

#[tokio::test]
async fn an_object_does_not_inherit_a_list() {
    let server = Server::new().await;
    let c = &server.root;
    let ada = server.user("ada", &["write:open"]).await;
    c.put("/open/k", "x").await.expect(200);
    c.put("/open/k?acl", list(&named(&canonical_id(Some("ada"))), "WRITE_ACP")).await.expect(200);
    for method in ["PUT", "POST"] {
        let path = if method == "POST" { "/open/k?uploads" } else { "/open/k" };
        ada.call(method, path).header("x-amz-acl", "public-read").send().await.refused(403, "AccessDenied");
    }
    canned(&ada, "/open/k?acl", "public-read").await.expect(200);
    assert_eq!(ask(c, "GET", "/open/k").await.expect(200).bytes(), b"x");
}

#[tokio::test]
async fn a_bucket_that_exists_is_not_made_with_another_list() {
    let c = Client::new().await;
    c.call("PUT", "/open").header("x-amz-acl", "public-read").send().await.expect(200);
    c.call("PUT", "/open").header("x-amz-acl", "public-read").send().await.expect(200);
    c.call("PUT", "/open").send().await.expect(200);
    for (header, value) in [("x-amz-acl", "public-read-write"), ("x-amz-object-ownership", "ObjectWriter")] {
        c.call("PUT", "/open").header(header, value).send().await.refused(409, "BucketAlreadyOwnedByYou");
    }
    c.call("PUT", "/open").header("x-amz-acl", "private").send().await.refused(409, "BucketAlreadyOwnedByYou");
}
