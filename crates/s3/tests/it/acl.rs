//! Access control lists: what is true anyway is accepted, all else is refused.

use steadfast_s3::S3Options;

use crate::common::{Client, options};

#[tokio::test]
async fn a_list_that_changes_nothing_is_accepted() {
    let public = S3Options { public_read: ["open".to_owned()].into(), ..options() };
    let c = Client::with(public).await;
    for bucket in ["open", "plain"] {
        c.bucket(bucket).await;
        let (object, list) = (format!("/{bucket}/k"), format!("/{bucket}/k?acl"));
        c.put(&object, "x").await.expect(200);
        let canned = |path: &str, name: &str| c.call("PUT", path).header("x-amz-acl", name).send();
        let (holds, other) = if bucket == "open" { ("public-read", "private") } else { ("private", "public-read") };
        canned(&list, holds).await.expect(200);
        assert!(canned(&list, other).await.refused(501, "NotImplemented").xml("Message").contains("s3.public_read"));
        canned(&list, "public-read-write").await.refused(501, "NotImplemented");
        // What the server answered, as `s3cmd setacl` sends it back.
        let answered = c.get(&list).await.expect(200).text().to_owned();
        assert_eq!(answered.contains("AllUsers"), bucket == "open", "{answered}");
        c.put(&list, answered).await.expect(200);
        c.put(&list, "").await.refused(400, "MissingSecurityHeader");
        let bucket_list = format!("/{bucket}?acl");
        canned(&bucket_list, "private").await.expect(200);
        let answered = c.get(&bucket_list).await.expect(200).text().to_owned();
        c.put(&bucket_list, answered).await.expect(200);
        canned(&bucket_list, "public-read").await.refused(501, "NotImplemented");
        canned(&format!("/{bucket}/absent?acl"), "private").await.refused(404, "NoSuchKey");
        assert_eq!(c.get(&object).await.expect(200).bytes(), b"x");
    }
    c.call("PUT", "/none?acl").header("x-amz-acl", "private").send().await.refused(404, "NoSuchBucket");
    c.call("PUT", "/plain/k?acl").header("x-amz-acl", "private").send_unsigned().await.refused(403, "AccessDenied");
    let granted = c.call("PUT", "/plain/k?acl").header("x-amz-grant-full-control", "id=\"steadfast\"");
    granted.send().await.expect(200);
}
