//! MinIO's administration: which requests reach it.

use serde_json::Value;

use steadfast_s3::S3Options;

use crate::common::{Answer, Call, Client, options};
use crate::users::{Server, SignedBy, send};

const SET: &str = "/minio/admin/v3/add-canned-policy";
const DOCUMENT: &str =
    r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:GetObject","Resource":"*"}]}"#;

fn get_user(c: &Client) -> Call<'_> {
    c.call("GET", "/minio/admin/v3/user-info").query("accessKey", "ada")
}

fn set_policy<'a>(c: &'a Client, document: &str) -> Call<'a> {
    c.call("PUT", SET).query("name", "reports").body(document.to_owned())
}

fn refused(answer: &Answer, status: u16, code: &str) {
    let body: Value = serde_json::from_slice(answer.bytes()).expect("JSON");
    assert_eq!((answer.status, body["Code"].as_str()), (status, Some(code)), "{answer:?}");
}

fn policies(server: &Server) -> usize {
    server.users.policies().all().expect("policies").len()
}

async fn info(c: &Client) -> Value {
    let answer = c.get("/minio/admin/v3/info").await.expect(200);
    serde_json::from_slice(answer.bytes()).expect("JSON")
}

#[tokio::test]
async fn only_root_reaches_it_and_signs_all_of_its_requests() {
    let server = Server::new().await;
    let c = &server.root;
    let ada = server.user("ada", &["full"]).await;
    let built_in = policies(&server);
    assert_eq!(info(c).await["backend"]["onlineDisks"], 1);
    assert_eq!(info(c).await["buckets"]["count"], 1);
    get_user(&ada).send().await.refused(403, "AccessDenied");
    set_policy(&ada, DOCUMENT).send().await.refused(403, "AccessDenied");
    set_policy(c, DOCUMENT).payload("UNSIGNED-PAYLOAD").send().await.refused(400, "InvalidRequest");
    for (method, path) in [("GET", "/minio/admin/v3/list-users"), ("PUT", SET)] {
        for (by, status, code) in [
            (SignedBy::Nothing, 403, "AccessDenied"),
            (SignedBy::Url, 400, "InvalidRequest"),
            (SignedBy::UrlV2, 400, "InvalidRequest"),
            (SignedBy::HeaderV2, 400, "InvalidRequest"),
        ] {
            // Version 2 signs no parameter of the query.
            send(c.call(method, path), by).await.refused(status, code);
        }
    }
    assert_eq!(policies(&server), built_in, "none was set");
    assert!(get_user(c).send().await.expect(200).text().contains("enabled"));
    set_policy(c, DOCUMENT).send().await.expect(200);
    assert_eq!(policies(&server), built_in + 1);
}

#[tokio::test]
async fn what_it_does_not_take_is_refused() {
    let server = Server::new().await;
    let c = &server.root;
    refused(&set_policy(c, "{").send().await, 400, "XMinioMalformedIAMPolicy");
    set_policy(c, &"x".repeat(300 << 10)).send().await.refused(400, "EntityTooLarge");
    let plain = c.call("PUT", "/minio/admin/v3/add-user").query("accessKey", "ada").body("not encrypted");
    refused(&plain.send().await, 400, "XMinioAdminConfigBadJSON");
    refused(&get_user(c).send().await, 404, "XMinioAdminNoSuchUser");
    refused(&c.call("POST", "/minio/admin/v3/service").send().await, 501, "NotImplemented");
    // The paths stay its own: no bucket has this name.
    c.call("PUT", "/minio").send().await.refused(400, "InvalidBucketName");
}

#[tokio::test]
async fn a_host_of_a_bucket_has_none() {
    let server = Server::with(S3Options { domains: vec!["s3.example.com".into()], ..options() }).await;
    let c = &server.root;
    let at = |host: &'static str| get_user(c).header("host", host);
    refused(&at("s3.example.com").send().await, 404, "XMinioAdminNoSuchUser");
    at("open.s3.example.com").send().await.refused(404, "NoSuchKey");
}
