//! A slow and obvious evaluator, and the test that the real one decides as it does.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{AccessDecision, AccessRequest, Fact, Facts, Policy, PolicyUse, Principal, S3Action, decide};

/// A request without further facts.
pub(crate) struct NoFacts;

impl Facts for NoFacts {
    fn values(&self, _: &Fact) -> Vec<Cow<'_, str>> {
        Vec::new()
    }
}

/// Facts under the names that conditions use, in small letters.
#[derive(Debug, Clone, Default)]
pub(crate) struct NamedFacts(pub(crate) BTreeMap<String, Vec<String>>);

impl Facts for NamedFacts {
    fn values(&self, fact: &Fact) -> Vec<Cow<'_, str>> {
        let found = self.0.iter().find(|(name, _)| Fact::parse(name).as_ref() == Some(fact));
        found.map(|(_, values)| values.iter().map(|value| Cow::Borrowed(value.as_str())).collect()).unwrap_or_default()
    }
}

/// A request as the reference sees it.
#[derive(Debug, Clone)]
struct TestRequest {
    user: Option<String>,
    action: String,
    resource: String,
    facts: BTreeMap<String, Vec<String>>,
}

impl TestRequest {
    fn values(&self, name: &str) -> Vec<String> {
        let name = name.to_lowercase();
        if name == "aws:username" {
            return self.user.iter().cloned().collect();
        }
        self.facts.get(&name).cloned().unwrap_or_default()
    }

    /// The text with values for its variables, whose wildcards are quoted by a zero byte.
    fn filled(&self, text: &str) -> Option<String> {
        let Some((before, rest)) = text.split_once("${") else { return Some(text.into()) };
        let (name, after) = rest.split_once('}').expect("a variable ends");
        let (name, default) = match name.split_once(", ") {
            Some((name, default)) => (name, Some(default.trim_matches('\'').to_owned())),
            None => (name, None),
        };
        let value = self.values(name).first().cloned().or(default)?;
        let quoted: String = value.chars().flat_map(|c| ['\0', c]).collect();
        Some(format!("{before}{quoted}{}", self.filled(after)?))
    }

    fn applies(&self, statement: &Value) -> bool {
        let denies = statement["Effect"] == "Deny";
        let principal = statement.get("Principal").is_none_or(|principal| {
            list(principal.get("AWS").unwrap_or(principal)).iter().any(|name| match name.as_str() {
                "*" => true,
                "000000000000" | "arn:aws:iam::000000000000:root" => denies && self.user.is_some(),
                name => self.user.as_deref().is_some_and(|user| name.ends_with(&format!(":user/{user}"))),
            })
        });
        let like_action = |pattern: &String| {
            pattern == "*" || like(&pattern.to_lowercase(), &format!("s3:{}", self.action).to_lowercase())
        };
        let like_resource = |pattern: &String| {
            let pattern = pattern.strip_prefix("arn:aws:s3:::").unwrap_or(pattern);
            self.filled(pattern).is_some_and(|pattern| like(&pattern, &self.resource))
        };
        let one_of = |name: &str, test: &dyn Fn(&String) -> bool| match statement.get(name) {
            Some(patterns) => list(patterns).iter().any(test),
            None => !list(&statement[format!("Not{name}")]).iter().any(test),
        };
        principal
            && one_of("Action", &like_action)
            && one_of("Resource", &like_resource)
            && statement.get("Condition").and_then(Value::as_object).into_iter().flatten().all(|(operator, facts)| {
                facts
                    .as_object()
                    .expect("an object")
                    .iter()
                    .all(|(fact, values)| self.meets(operator, fact, &list(values)))
            })
    }

    fn meets(&self, operator: &str, fact: &str, wanted: &[String]) -> bool {
        let values = self.values(fact);
        if operator == "Null" {
            return wanted.iter().any(|want| want == if values.is_empty() { "true" } else { "false" });
        }
        let (set, name) = operator.split_once(':').unwrap_or(("", operator));
        if values.is_empty() && name.ends_with("IfExists") {
            return true;
        }
        let name = name.trim_end_matches("IfExists");
        let negated = name.contains("Not");
        let name = name.replace("Not", "");
        let matches = |value: &String| wanted.iter().any(|want| self.one(&name, value, want)) != negated;
        match set {
            "ForAnyValue" => values.iter().any(matches),
            "ForAllValues" => values.iter().all(matches),
            _ if values.is_empty() => negated,
            _ if negated => values.iter().all(matches),
            _ => values.iter().any(matches),
        }
    }

    fn one(&self, operator: &str, value: &str, want: &str) -> bool {
        let filled = self.filled(want);
        let plain = filled.as_ref().map(|text| text.replace('\0', ""));
        match operator {
            "StringEquals" => plain.as_deref() == Some(value),
            "StringEqualsIgnoreCase" => plain.is_some_and(|text| text.to_lowercase() == value.to_lowercase()),
            "StringLike" => filled.is_some_and(|pattern| like(&pattern, value)),
            "Bool" => want == value,
            "NumericEquals" => numbers(value, want).is_some_and(|(value, want)| value == want),
            "NumericLessThan" => numbers(value, want).is_some_and(|(value, want)| value < want),
            "NumericLessThanEquals" => numbers(value, want).is_some_and(|(value, want)| value <= want),
            "NumericGreaterThan" => numbers(value, want).is_some_and(|(value, want)| value > want),
            "NumericGreaterThanEquals" => numbers(value, want).is_some_and(|(value, want)| value >= want),
            // Texts in one form of ISO 8601 have the order of their times.
            "DateEquals" => value == want,
            "DateLessThan" => value < want,
            "DateLessThanEquals" => value <= want,
            "DateGreaterThan" => value > want,
            "DateGreaterThanEquals" => value >= want,
            "IpAddress" => {
                let (net, bits) = want.split_once('/').unwrap_or((want, "32"));
                let bits: usize = bits.parse().expect("bits");
                bits_of(value).zip(bits_of(net)).is_some_and(|(value, net)| value[..bits] == net[..bits])
            }
            other => panic!("the reference does not know {other}"),
        }
    }

    fn decide(&self, documents: &[Value]) -> AccessDecision {
        let all: Vec<&Value> = documents
            .iter()
            .flat_map(|document| match &document["Statement"] {
                Value::Array(statements) => statements.iter().collect(),
                one => vec![one],
            })
            .collect();
        if all.iter().any(|statement| statement["Effect"] == "Deny" && self.applies(statement)) {
            AccessDecision::Denied
        } else if all.iter().any(|statement| statement["Effect"] == "Allow" && self.applies(statement)) {
            AccessDecision::Allowed
        } else {
            AccessDecision::Unmentioned
        }
    }
}

fn bits_of(address: &str) -> Option<String> {
    match address.parse().ok()? {
        IpAddr::V4(address) => Some(format!("{:032b}", address.to_bits())),
        IpAddr::V6(_) => None,
    }
}

fn numbers(value: &str, want: &str) -> Option<(i64, i64)> {
    Some((value.parse().ok()?, want.parse().ok()?))
}

fn list(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().flat_map(list).collect(),
        Value::String(text) => vec![text.clone()],
        other => vec![other.to_string()],
    }
}

/// Whether the pattern matches the text, by trying everything. A character behind a zero byte is
/// itself.
fn like(pattern: &str, text: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => text.is_empty(),
        Some('*') => {
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| like(rest.as_str(), &text[at..]))
        }
        Some(want) => {
            let want = if want == '\0' { rest.next() } else { Some(want).filter(|want| *want != '?') };
            let mut after = text.chars();
            after.next().is_some_and(|is| want.is_none_or(|want| want == is)) && like(rest.as_str(), after.as_str())
        }
    }
}

const ACTIONS: &[&str] = &["GetObject", "PutObject", "DeleteObject", "ListBucket", "PutBucketPolicy"];

fn one_or_many(element: impl Strategy<Value = Value> + Clone + 'static) -> impl Strategy<Value = Value> {
    prop_oneof![element.clone(), prop::collection::vec(element, 1..4).prop_map(Value::Array)]
}

fn texts(texts: &'static [&'static str]) -> impl Strategy<Value = Value> + Clone {
    prop::sample::select(texts).prop_map(Value::from)
}

/// An operator, a fact and values.
fn condition() -> impl Strategy<Value = (String, &'static str, Value)> {
    let set = prop::sample::select(&["", "", "ForAnyValue:", "ForAllValues:"][..]);
    let if_exists = prop::sample::select(&["", "", "IfExists"][..]);
    let named = move |names: &'static [&'static str]| {
        (set.clone(), prop::sample::select(names), if_exists.clone())
            .prop_map(|(set, name, end)| format!("{set}{name}{end}"))
    };
    const TEXTS: &[&str] =
        &["a", "A", "b/*", "*", "a?", "${aws:username}", "${s3:prefix}/x", "${s3:delimiter, 'a'}", ""];
    let text = (
        named(&[
            "StringEquals",
            "StringNotEquals",
            "StringLike",
            "StringNotLike",
            "StringEqualsIgnoreCase",
            "StringNotEqualsIgnoreCase",
        ]),
        prop::sample::select(
            &["s3:prefix", "s3:delimiter", "s3:RequestObjectTagKeys", "aws:username", "S3:Prefix"][..],
        ),
        one_or_many(texts(TEXTS)),
    );
    let number = (
        named(&[
            "NumericEquals",
            "NumericNotEquals",
            "NumericLessThan",
            "NumericLessThanEquals",
            "NumericGreaterThan",
            "NumericGreaterThanEquals",
        ]),
        Just("s3:max-keys"),
        one_or_many((0..4_i64).prop_map(Value::from)),
    );
    const DATES: &[&str] = &["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2027-01-01T00:00:00Z"];
    let date = (
        named(&[
            "DateEquals",
            "DateNotEquals",
            "DateLessThan",
            "DateLessThanEquals",
            "DateGreaterThan",
            "DateGreaterThanEquals",
        ]),
        Just("aws:CurrentTime"),
        one_or_many(texts(DATES)),
    );
    let address = (
        named(&["IpAddress", "NotIpAddress"]),
        Just("aws:SourceIp"),
        one_or_many(texts(&["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "0.0.0.0/0"])),
    );
    let truth = (named(&["Bool"]), Just("aws:SecureTransport"), one_or_many(any::<bool>().prop_map(Value::from)));
    let null = (
        Just("Null".to_owned()),
        prop::sample::select(&["s3:prefix", "aws:username"][..]),
        one_or_many(texts(&["true", "false"])),
    );
    prop_oneof![4 => text, 1 => number, 1 => date, 1 => address, 1 => truth, 1 => null]
}

fn statement(of_bucket: bool) -> impl Strategy<Value = Value> {
    const PRINCIPALS: &[&str] = &[
        "*",
        "arn:aws:iam::000000000000:user/ada",
        "arn:aws:iam:::user/bob",
        "arn:aws:iam::000000000000:root",
        "000000000000",
    ];
    const RESOURCES: &[&str] = &[
        "arn:aws:s3:::b",
        "arn:aws:s3:::b/*",
        "arn:aws:s3:::b/a?",
        "arn:aws:s3:::b*",
        "arn:aws:s3:::b/${aws:username}/*",
        "arn:aws:s3:::b/${s3:prefix}",
    ];
    (
        prop::sample::select(&["Allow", "Allow", "Deny"][..]),
        prop_oneof![Just(json!("*")), one_or_many(texts(PRINCIPALS)).prop_map(|names| json!({ "AWS": names }))],
        (
            prop::bool::weighted(0.2),
            one_or_many(texts(&["s3:GetObject", "s3:Get*", "S3:put*", "s3:*", "*", "s3:List?ucket"])),
        ),
        (prop::bool::weighted(0.2), one_or_many(texts(RESOURCES))),
        prop::collection::vec(condition(), 0..3),
    )
        .prop_map(move |(effect, principal, (not_action, actions), (not_resource, resources), conditions)| {
            let mut statement = json!({ "Effect": effect });
            if of_bucket {
                statement["Principal"] = principal;
            }
            statement[if not_action { "NotAction" } else { "Action" }] = actions;
            statement[if not_resource { "NotResource" } else { "Resource" }] = resources;
            for (operator, fact, values) in conditions {
                statement["Condition"][operator][fact] = values;
            }
            statement
        })
}

fn document(of_bucket: bool) -> impl Strategy<Value = Value> {
    prop::collection::vec(statement(of_bucket), 1..4)
        .prop_map(|statements| json!({ "Version": "2012-10-17", "Statement": statements }))
}

fn test_request() -> impl Strategy<Value = TestRequest> {
    let texts = |values: &'static [&'static str]| {
        prop::option::of(prop::sample::select(values).prop_map(|text| vec![text.to_owned()]))
    };
    (
        prop::sample::select(&[None, Some("ada"), Some("bob"), Some("a*")][..]),
        prop::sample::select(ACTIONS),
        prop::sample::select(&["b", "b/a", "b/ab", "b/ada/x", "b/a*/x", "b/", "b/b/x", "b/ü"][..]),
        (
            texts(&["a", "A", "b/x", "", "ada", "*"]),
            texts(&["/", "a"]),
            texts(&["0", "1", "3", "many"]),
            texts(&["2026-01-01T00:00:00Z", "2026-06-01T00:00:00Z"]),
            texts(&["10.1.2.3", "10.1.9.9", "192.0.2.1", "2001:db8::1"]),
            texts(&["true", "false"]),
            prop::option::of(prop::collection::vec(
                prop::sample::select(&["a", "b/c", "A"][..]).prop_map(str::to_owned),
                1..3,
            )),
        ),
    )
        .prop_map(|(user, action, resource, facts)| {
            let named = [
                ("s3:prefix", facts.0),
                ("s3:delimiter", facts.1),
                ("s3:max-keys", facts.2),
                ("aws:currenttime", facts.3),
                ("aws:sourceip", facts.4),
                ("aws:securetransport", facts.5),
                ("s3:requestobjecttagkeys", facts.6),
            ];
            let facts = named.into_iter().filter_map(|(name, values)| Some((name.to_owned(), values?))).collect();
            TestRequest {
                user: user.map(str::to_owned),
                action: action.to_owned(),
                resource: resource.to_owned(),
                facts,
            }
        })
}

/// Cases of the property; `ACCESS_CASES` sets another number.
fn cases() -> u32 {
    std::env::var("ACCESS_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(5_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn the_evaluator_decides_as_the_reference(of_bucket in document(true), of_user in prop::option::of(document(false)), request in test_request()) {
        let policy = |document: &Value, used| Policy::parse(document.to_string().as_bytes(), used).expect("a policy");
        let mut policies = vec![policy(&of_bucket, PolicyUse::Bucket("b"))];
        let mut documents = vec![of_bucket];
        // Only users have policies of their own.
        if let (Some(of_user), true) = (of_user, request.user.is_some()) {
            policies.push(policy(&of_user, PolicyUse::User));
            documents.push(of_user);
        }
        let facts = NamedFacts(request.facts.clone());
        let judged = AccessRequest {
            principal: request.user.as_deref().map_or(Principal::Anonymous, Principal::User),
            action: S3Action::named(&request.action).expect("an action"),
            resource: &request.resource,
            facts: &facts,
        };
        prop_assert_eq!(decide(&policies, &judged), request.decide(&documents));
    }
}
