//! Cases of AWS's own documentation, and documents that are refused.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::reference::NamedFacts;
use crate::{AccessDecision, AccessRequest, POLICY_BYTES_MAX, Policy, PolicyUse, Principal, S3Action, decide};

const ADA: Option<&str> = Some("ada");

fn facts(named: &[(&str, &str)]) -> NamedFacts {
    let mut facts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in named {
        facts.entry((*name).into()).or_default().push((*value).into());
    }
    NamedFacts(facts)
}

fn decided(
    documents: &[(Value, PolicyUse<'_>)],
    user: Option<&str>,
    action: &str,
    resource: &str,
    named: &[(&str, &str)],
) -> AccessDecision {
    let policies: Vec<Policy> = documents
        .iter()
        .map(|(document, used)| Policy::parse(document.to_string().as_bytes(), *used).expect("a policy"))
        .collect();
    let facts = facts(named);
    let principal = user.map_or(Principal::Anonymous, Principal::User);
    let action = S3Action::named(action).expect("an action");
    decide(&policies, &AccessRequest { principal, action, resource, facts: &facts })
}

fn of_user(statement: Value) -> (Value, PolicyUse<'static>) {
    (json!({ "Version": "2012-10-17", "Statement": statement }), PolicyUse::User)
}

fn of_bucket(statement: Value) -> (Value, PolicyUse<'static>) {
    (json!({ "Version": "2012-10-17", "Statement": statement }), PolicyUse::Bucket("bucket"))
}

/// Source: "Policy evaluation logic" and "How AWS enforcement code logic evaluates requests".
#[test]
fn a_denial_counts_more_than_a_permission() {
    use AccessDecision::{Allowed, Denied, Unmentioned};
    let allow = || of_user(json!({ "Effect": "Allow", "Action": "s3:*", "Resource": "*" }));
    let deny = || {
        of_bucket(
            json!({ "Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::bucket/*" }),
        )
    };
    let get = |documents: &[_], action| decided(documents, ADA, action, "bucket/key", &[]);
    assert_eq!(get(&[], "GetObject"), Unmentioned, "nothing is allowed by itself");
    assert_eq!(get(&[allow()], "DeleteObject"), Allowed);
    assert_eq!(get(&[allow(), deny()], "DeleteObject"), Denied, "in any order");
    assert_eq!(get(&[deny(), allow()], "DeleteObject"), Denied, "in any order");
    assert_eq!(get(&[allow(), deny()], "GetObject"), Allowed);
    assert_eq!(get(&[deny()], "GetObject"), Unmentioned, "a denial of another action allows nothing");
}

/// Source: the same, "identity-based and resource-based policies within one account".
#[test]
fn either_policy_of_one_account_is_enough() {
    let bucket = of_bucket(json!({
        "Effect": "Allow", "Principal": { "AWS": "arn:aws:iam::000000000000:user/ada" },
        "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*",
    }));
    assert!(decided(std::slice::from_ref(&bucket), ADA, "GetObject", "bucket/key", &[]).is_allowed());
    assert!(!decided(std::slice::from_ref(&bucket), Some("bob"), "GetObject", "bucket/key", &[]).is_allowed());
    assert!(!decided(&[bucket], None, "GetObject", "bucket/key", &[]).is_allowed());
}

/// Source: "Bucket policy examples": read access for everyone.
#[test]
fn everyone_reads_objects_and_lists_nothing() {
    let public = of_bucket(json!({
        "Sid": "PublicRead", "Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::bucket/*"],
    }));
    assert!(decided(std::slice::from_ref(&public), None, "GetObject", "bucket/a/b", &[]).is_allowed());
    assert!(!decided(std::slice::from_ref(&public), None, "ListBucket", "bucket", &[]).is_allowed());
    assert!(!decided(&[public], None, "GetObject", "bucket2/a", &[]).is_allowed());
}

/// Source: "Bucket policy examples": only HTTPS.
#[test]
fn without_tls_everything_is_denied() {
    let tls = of_bucket(json!({
        "Effect": "Deny", "Principal": "*", "Action": "s3:*",
        "Resource": ["arn:aws:s3:::bucket", "arn:aws:s3:::bucket/*"], "Condition": { "Bool": { "aws:SecureTransport": "false" } },
    }));
    let allow = of_user(json!({ "Effect": "Allow", "Action": "s3:*", "Resource": "*" }));
    let get = |secure| {
        decided(&[tls.clone(), allow.clone()], ADA, "GetObject", "bucket/key", &[("aws:securetransport", secure)])
    };
    assert_eq!(get("true"), AccessDecision::Allowed);
    assert_eq!(get("false"), AccessDecision::Denied);
}

/// Source: "Bucket policy examples": addresses, with one network taken out of another.
#[test]
fn addresses_are_allowed_by_network() {
    let addresses = of_bucket(json!({
        "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*",
        "Condition": { "IpAddress": { "aws:SourceIp": ["192.0.2.0/24", "2001:db8:1234:5678::/64"] }, "NotIpAddress": { "aws:SourceIp": "192.0.2.188/32" } },
    }));
    let get = |address| {
        decided(std::slice::from_ref(&addresses), None, "GetObject", "bucket/key", &[("aws:sourceip", address)])
            .is_allowed()
    };
    assert!(get("192.0.2.1") && get("2001:db8:1234:5678::9") && get("::ffff:192.0.2.1"));
    assert!(!get("192.0.2.188") && !get("203.0.113.1") && !get("2001:db8::1"));
}

/// Source: "Bucket policy examples": a referer.
#[test]
fn a_referer_is_matched_like_a_text() {
    let referer = of_bucket(json!({
        "Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject"], "Resource": "arn:aws:s3:::bucket/*",
        "Condition": { "StringLike": { "aws:Referer": ["http://www.example.com/*", "http://example.com/*"] } },
    }));
    let get = |named: &[(&str, &str)]| {
        decided(std::slice::from_ref(&referer), None, "GetObject", "bucket/key", named).is_allowed()
    };
    assert!(get(&[("aws:referer", "http://example.com/page")]));
    assert!(!get(&[("aws:referer", "http://evil.example.org/?http://example.com/")]));
    assert!(!get(&[]), "without a referer");
}

/// Source: "Identity-based policy examples": a folder of each user's own.
#[test]
fn each_user_has_a_folder() {
    let home = [
        of_user(json!({ "Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": ["arn:aws:s3:::bucket"],
            "Condition": { "StringLike": { "s3:prefix": ["", "home/", "home/${aws:username}/*"] } } })),
        of_user(
            json!({ "Effect": "Allow", "Action": "s3:*", "Resource": ["arn:aws:s3:::bucket/home/${aws:username}", "arn:aws:s3:::bucket/home/${aws:username}/*"] }),
        ),
    ];
    assert!(decided(&home, ADA, "PutObject", "bucket/home/ada/x", &[]).is_allowed());
    assert!(!decided(&home, ADA, "PutObject", "bucket/home/bob/x", &[]).is_allowed());
    assert!(decided(&home, ADA, "ListBucket", "bucket", &[("s3:prefix", "home/ada/x")]).is_allowed());
    assert!(!decided(&home, ADA, "ListBucket", "bucket", &[("s3:prefix", "home/bob/")]).is_allowed());
    // A user's name has no wildcards.
    assert!(!decided(&home, Some("*"), "PutObject", "bucket/home/bob/x", &[]).is_allowed());
}

/// Source: "Controlling access with conditions": the prefix, the number of keys and the ACL.
#[test]
fn listings_and_acls_are_limited_by_conditions() {
    let prefix = of_user(json!({ "Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::bucket",
        "Condition": { "StringEquals": { "s3:prefix": "projects" }, "NumericLessThanEquals": { "s3:max-keys": "10" } } }));
    let list = |named: &[(&str, &str)]| {
        decided(std::slice::from_ref(&prefix), ADA, "ListBucket", "bucket", named).is_allowed()
    };
    assert!(list(&[("s3:prefix", "projects"), ("s3:max-keys", "10")]));
    assert!(!list(&[("s3:prefix", "projects"), ("s3:max-keys", "11")]));
    assert!(!list(&[("s3:prefix", "other"), ("s3:max-keys", "1")]));
    assert!(!list(&[]));
    let acl = of_bucket(
        json!({ "Effect": "Allow", "Principal": { "AWS": "arn:aws:iam::000000000000:user/ada" }, "Action": "s3:PutObject",
        "Resource": "arn:aws:s3:::bucket/*", "Condition": { "StringEquals": { "s3:x-amz-acl": "bucket-owner-full-control" } } }),
    );
    assert!(
        decided(
            std::slice::from_ref(&acl),
            ADA,
            "PutObject",
            "bucket/k",
            &[("s3:x-amz-acl", "bucket-owner-full-control")]
        )
        .is_allowed()
    );
    assert!(!decided(&[acl], ADA, "PutObject", "bucket/k", &[]).is_allowed());
}

/// Source: "Object tagging and access control policies".
#[test]
fn tags_are_compared_by_name() {
    let existing = of_bucket(
        json!({ "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*",
        "Condition": { "StringEquals": { "s3:ExistingObjectTag/key1": "value1" } } }),
    );
    assert!(
        decided(
            std::slice::from_ref(&existing),
            None,
            "GetObject",
            "bucket/k",
            &[("s3:existingobjecttag/key1", "value1")]
        )
        .is_allowed()
    );
    assert!(
        !decided(
            std::slice::from_ref(&existing),
            None,
            "GetObject",
            "bucket/k",
            &[("s3:existingobjecttag/key2", "value1")]
        )
        .is_allowed()
    );
    let keys =
        of_user(json!({ "Effect": "Allow", "Action": "s3:PutObjectTagging", "Resource": "arn:aws:s3:::bucket/*",
        "Condition": { "ForAllValues:StringLike": { "s3:RequestObjectTagKeys": ["Owner", "CreationDate"] } } }));
    let tag = |named: &[(&str, &str)]| {
        decided(std::slice::from_ref(&keys), ADA, "PutObjectTagging", "bucket/k", named).is_allowed()
    };
    assert!(tag(&[("s3:requestobjecttagkeys", "Owner")]));
    assert!(!tag(&[("s3:requestobjecttagkeys", "Owner"), ("s3:requestobjecttagkeys", "Other")]));
    assert!(tag(&[]), "ForAllValues holds for no values");
}

/// Source: "IAM JSON policy elements: Condition operators": absent keys, IfExists, Null, dates.
#[test]
fn absent_facts_meet_negated_operators_only() {
    let with = |condition: Value| {
        of_user(json!({ "Effect": "Allow", "Action": "s3:ListBucket", "Resource": "*", "Condition": condition }))
    };
    let list = |condition: Value, named: &[(&str, &str)]| {
        decided(&[with(condition)], ADA, "ListBucket", "bucket", named).is_allowed()
    };
    assert!(!list(json!({ "StringEquals": { "s3:prefix": "a" } }), &[]));
    assert!(list(json!({ "StringNotEquals": { "s3:prefix": "a" } }), &[]));
    assert!(list(json!({ "StringEqualsIfExists": { "s3:prefix": "a" } }), &[]));
    assert!(!list(json!({ "StringEqualsIfExists": { "s3:prefix": "a" } }), &[("s3:prefix", "b")]));
    assert!(list(json!({ "Null": { "s3:prefix": "true" } }), &[]));
    assert!(!list(json!({ "Null": { "s3:prefix": true } }), &[("s3:prefix", "")]));
    let days = json!({ "DateGreaterThan": { "aws:CurrentTime": "2026-04-01T00:00:00Z" }, "DateLessThan": { "aws:CurrentTime": "2026-06-30T23:59:59Z" } });
    assert!(list(days.clone(), &[("aws:currenttime", "2026-05-01T00:00:00Z")]));
    assert!(!list(days, &[("aws:currenttime", "2026-07-01T00:00:00Z")]));
    // The values of one key are alternatives; operators and keys must all hold.
    let two = json!({ "StringEquals": { "s3:prefix": ["a", "b"], "s3:delimiter": "/" } });
    assert!(list(two.clone(), &[("s3:prefix", "b"), ("s3:delimiter", "/")]));
    assert!(!list(two, &[("s3:prefix", "b")]));
}

/// Source: "IAM JSON policy elements: NotAction, NotResource".
#[test]
fn exceptions_apply_to_all_else() {
    let not_action =
        of_user(json!({ "Effect": "Allow", "NotAction": "s3:DeleteBucket", "Resource": "arn:aws:s3:::*" }));
    assert!(decided(std::slice::from_ref(&not_action), ADA, "PutObject", "bucket/k", &[]).is_allowed());
    assert!(!decided(&[not_action], ADA, "DeleteBucket", "bucket", &[]).is_allowed());
    let not_resource = [
        of_user(json!({ "Effect": "Allow", "Action": "s3:*", "Resource": "*" })),
        of_user(
            json!({ "Effect": "Deny", "Action": "s3:*", "NotResource": ["arn:aws:s3:::mine", "arn:aws:s3:::mine/*"] }),
        ),
    ];
    assert!(decided(&not_resource, ADA, "GetObject", "mine/k", &[]).is_allowed());
    assert_eq!(decided(&not_resource, ADA, "GetObject", "other/k", &[]), AccessDecision::Denied);
}

/// Source: "IAM JSON policy elements: Variables and tags".
#[test]
fn variables_have_defaults_and_escapes() {
    let allow = |resource: &str| of_user(json!({ "Effect": "Allow", "Action": "s3:GetObject", "Resource": resource }));
    let get = |pattern: &str, resource: &str| decided(&[allow(pattern)], ADA, "GetObject", resource, &[]).is_allowed();
    assert!(get("arn:aws:s3:::bucket/${s3:prefix, 'home'}/x", "bucket/home/x"));
    assert!(get("arn:aws:s3:::bucket/${*}", "bucket/*"));
    assert!(!get("arn:aws:s3:::bucket/${*}", "bucket/x"));
    assert!(get("arn:aws:s3:::bucket/${$}x", "bucket/$x"));
    assert!(!get("arn:aws:s3:::bucket/${s3:prefix}*", "bucket/x"), "an absent value matches nothing");
    // The first version of the language has no variables.
    let old = json!({ "Statement": { "Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/${aws:username}" } });
    assert!(decided(&[(old.clone(), PolicyUse::User)], ADA, "GetObject", "bucket/${aws:username}", &[]).is_allowed());
    assert!(!decided(&[(old, PolicyUse::User)], ADA, "GetObject", "bucket/ada", &[]).is_allowed());
}

#[test]
fn arns_are_matched_part_by_part() {
    let with = |pattern: &str| {
        of_bucket(
            json!({ "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*",
        "Condition": { "ArnLike": { "aws:PrincipalArn": pattern } } }),
        )
    };
    let get = |pattern: &str, user| decided(&[with(pattern)], user, "GetObject", "bucket/k", &[]).is_allowed();
    assert!(get("arn:aws:iam::000000000000:user/a*", ADA));
    assert!(get("arn:*:iam::*:user/${aws:username}", ADA));
    assert!(!get("arn:aws:iam::*:user/bob", ADA));
    assert!(!get("arn:*:*:*:*:group/a*", ADA));
    assert!(!get("arn:aws:iam::000000000000:user/*", None));
}

#[test]
fn a_public_policy_is_known() {
    let is_public = |statement: Value| {
        let (document, used) = of_bucket(statement);
        Policy::parse(document.to_string().as_bytes(), used).expect("a policy").is_public()
    };
    let allow = |principal: Value, condition: Value| {
        json!({ "Effect": "Allow", "Principal": principal, "Action": "s3:GetObject",
        "Resource": "arn:aws:s3:::bucket/*", "Condition": condition })
    };
    assert!(is_public(allow(json!("*"), json!({}))));
    assert!(is_public(allow(json!({ "AWS": ["*"] }), json!({ "StringLike": { "aws:Referer": "http://a/*" } }))));
    assert!(is_public(allow(json!("*"), json!({ "IpAddress": { "aws:SourceIp": "0.0.0.0/0" } }))));
    assert!(!is_public(allow(json!("*"), json!({ "IpAddress": { "aws:SourceIp": "10.0.0.0/8" } }))));
    assert!(!is_public(allow(json!({ "AWS": "arn:aws:iam:::user/ada" }), json!({}))));
}

#[test]
fn what_is_unknown_is_refused() {
    let good =
        json!({ "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*" });
    let with = |name: &str, value: Value| {
        let mut statement = good.clone();
        statement[name] = value;
        json!({ "Version": "2012-10-17", "Statement": [statement] })
    };
    let without = |name: &str| {
        let mut statement = good.clone();
        statement.as_object_mut().expect("an object").remove(name);
        json!({ "Version": "2012-10-17", "Statement": [statement] })
    };
    let parse = |text: &str| Policy::parse(text.as_bytes(), PolicyUse::Bucket("bucket")).map_err(|e| e.to_string());
    assert_eq!(parse(&with("Sid", json!("a")).to_string()).err(), None);
    let bad = [
        with("Effect", json!("allow")),
        with("Effect", json!(["Allow"])),
        with("Principal", json!("ada")),
        with("Principal", json!({ "AWS": "ada" })),
        with("Principal", json!({ "AWS": [] })),
        with("Principal", json!({})),
        with("Principal", json!({ "Service": "s3.amazonaws.com" })),
        with("Principal", json!({ "AWS": "arn:aws:iam::123456789012:user/ada" })),
        with("Principal", json!({ "AWS": "arn:aws:iam::000000000000:user/*" })),
        with("NotPrincipal", json!("*")),
        with("Action", json!("s3:Fly")),
        with("Action", json!([])),
        with("Action", json!(["s3:GetObject", "sqs:*"])),
        with("Action", json!([[["s3:GetObject"]]])),
        with("NotAction", json!("s3:PutObject")),
        with("Resource", json!("*")),
        with("Resource", json!("arn:aws:s3:::")),
        with("Resource", json!("bucket/*")),
        with("Resource", json!("arn:aws:s3:::other/*")),
        with("Resource", json!([])),
        with("Resource", json!(format!("arn:aws:s3:::bucket/*{}", "?".repeat(65)))),
        with("Resource", json!("arn:aws:s3:::bucket/${aws:unknown}")),
        with("Resource", json!("arn:aws:s3:::bucket/${aws:username")),
        with("NotResource", json!("arn:aws:s3:::bucket/a")),
        with("Condition", json!([])),
        with("Condition", json!({ "StringEqual": { "s3:prefix": "a" } })),
        with("Condition", json!({ "StringEquals": { "s3:unknown": "a" } })),
        with("Condition", json!({ "StringEquals": { "s3:prefix": [] } })),
        with("Condition", json!({ "StringEquals": { "s3:prefix": null } })),
        with("Condition", json!({ "StringEquals": { "s3:prefix": { "a": "b" } } })),
        with("Condition", json!({ "ForSomeValues:StringEquals": { "s3:prefix": "a" } })),
        with("Condition", json!({ "NullIfExists": { "s3:prefix": "true" } })),
        with("Condition", json!({ "NumericEquals": { "s3:max-keys": "ten" } })),
        with("Condition", json!({ "DateEquals": { "aws:CurrentTime": "today" } })),
        with("Condition", json!({ "IpAddress": { "aws:SourceIp": "10.0.0.0/33" } })),
        with("Condition", json!({ "Bool": { "aws:SecureTransport": "yes" } })),
        with("Condition", json!({ "ArnLike": { "aws:PrincipalArn": "ada" } })),
        with("Comment", json!("a")),
        without("Effect"),
        without("Principal"),
        without("Action"),
        without("Resource"),
        json!({ "Version": "2012-10-17", "Statement": [] }),
        json!({ "Version": "2012-10-17" }),
        json!({ "Version": "2020-01-01", "Statement": [good] }),
        json!({ "Version": "2012-10-17", "Statement": [good], "More": 1 }),
        json!([good]),
        json!("policy"),
    ];
    for document in bad {
        assert!(parse(&document.to_string()).is_err(), "{document}");
    }
    let texts = [
        String::new(),
        "{".into(),
        "[".repeat(10_000),
        format!(r#"{{"Statement":{}"#, "[".repeat(10_000)),
        r#"{"Statement":[{"Effect":"Allow","Effect":"Deny","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::bucket"}]}"#.into(),
        r#"{"Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::bucket","Condition":{"Bool":{"aws:SecureTransport":"true"},"Bool":{"aws:SecureTransport":"false"}}}]}"#.into(),
        format!(r#"{{"Id":"{}","Statement":{good}}}"#, "x".repeat(POLICY_BYTES_MAX)),
    ];
    for text in texts {
        assert!(parse(&text).is_err(), "{}", &text[..text.len().min(100)]);
    }
    assert!(Policy::parse(b"{\"Id\":\"\xff\"}", PolicyUse::User).is_err());
    // The policy of a user names no principal.
    assert!(Policy::parse(with("Sid", json!("a")).to_string().as_bytes(), PolicyUse::User).is_err());
}
