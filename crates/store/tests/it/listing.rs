//! Listings equal those of a naive implementation over a sorted list.

use std::collections::BTreeSet;

use crate::common::{BUCKET, Pool, etag, put};
use proptest::prelude::*;
use steadfast_store::{Condition, ListQuery, Store};

#[derive(Debug, PartialEq)]
enum Item {
    Object(String),
    Prefix(String),
}

impl Item {
    fn text(&self) -> &str {
        let (Item::Object(text) | Item::Prefix(text)) = self;
        text
    }
}

fn naive(keys: &BTreeSet<String>, prefix: &str, delimiter: &str, after: &str) -> Vec<Item> {
    let mut items = Vec::new();
    for key in keys.iter().filter(|k| k.starts_with(prefix) && k.as_str() > after) {
        let rest = &key[prefix.len()..];
        let at = if delimiter.is_empty() { None } else { rest.find(delimiter) };
        let item = match at {
            Some(at) => Item::Prefix(key[..prefix.len() + at + delimiter.len()].to_owned()),
            None => Item::Object(key.clone()),
        };
        // A page that ends with a rolled-up prefix continues after it.
        if item != Item::Prefix(after.to_owned()) && items.last() != Some(&item) {
            items.push(item);
        }
    }
    items
}

fn listed(store: &Store, query: &ListQuery) -> (Vec<Item>, Option<String>) {
    let page = store.contents(BUCKET).objects(query).expect("list");
    let objects = page.objects.into_iter().map(|o| Item::Object(o.key));
    let mut items: Vec<Item> = objects.chain(page.prefixes.into_iter().map(Item::Prefix)).collect();
    items.sort_by(|a, b| a.text().cmp(b.text()));
    (items, page.next)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn pages_are_the_naive_list_cut(
        lsm: bool,
        disks in 1..6usize,
        keys in proptest::collection::btree_set("[ab/é]{1,5}", 0..60),
        queries in proptest::collection::vec(
            ("[ab/]{0,2}", prop_oneof![Just(""), Just("/"), Just("b"), Just("a/")], "[ab/]{0,4}", 1..9usize),
            1..12,
        ),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (_pool, store) = Pool::start_on(disks, lsm).await;
            for key in &keys {
                put(&store, key, b"").await;
            }
            for (prefix, delimiter, after, limit) in queries {
                let want = naive(&keys, &prefix, delimiter, &after);
                let mut query = ListQuery {
                    prefix: prefix.clone(), delimiter: delimiter.to_owned(), start_after: after.clone(), limit,
                };
                let mut got = Vec::new();
                loop {
                    let (items, next) = listed(&store, &query);
                    assert!(items.len() <= limit);
                    got.extend(items);
                    let Some(next) = next else { break };
                    assert_eq!(Some(next.as_str()), got.last().map(Item::text));
                    query.start_after = next;
                }
                assert_eq!(got, want, "prefix {prefix:?} delimiter {delimiter:?} after {after:?} limit {limit}");
            }
        });
    }
}

#[tokio::test]
async fn many_keys_under_a_prefix_are_stepped_over() {
    let (_pool, store) = Pool::start_on(3, true).await;
    for i in 0..300 {
        put(&store, &format!("deep/{i:04}"), b"").await;
    }
    put(&store, "last", b"").await;
    let query = ListQuery { delimiter: "/".into(), limit: 10, ..ListQuery::default() };
    let page = store.contents(BUCKET).objects(&query).expect("list");
    assert_eq!(page.prefixes, ["deep/"]);
    assert_eq!(page.objects.len(), 1);
    assert_eq!(page.next, None);
    let nothing = ListQuery { limit: 0, ..ListQuery::default() };
    assert_eq!(store.contents(BUCKET).objects(&nothing).expect("list").next, None);
}

on_disks! {
async fn uploads_are_listed_in_order_and_rolled_up(disks) {
    let (_pool, store) = Pool::start_on(disks, false).await;
    let mut want = Vec::new();
    for key in ["a", "a", "b/1", "b/2", "c"] {
        want.push((key.to_owned(), store.at(BUCKET, key).create_upload(etag(""), Condition::None).await.expect("upload").upload_id));
    }
    want.sort();
    let mut got = Vec::new();
    let mut after = (String::new(), String::new());
    loop {
        let page = store.contents(BUCKET).uploads("", "", (&after.0, &after.1), 2).expect("page");
        got.extend(page.uploads.into_iter().map(|u| (u.key, u.upload_id)));
        let Some(next) = page.next else { break };
        after = next;
    }
    assert_eq!(got, want);
    let page = store.contents(BUCKET).uploads("", "/", ("a", ""), 1).expect("page");
    assert_eq!(page.prefixes, ["b/"]);
    let (key, id) = page.next.expect("more");
    let page = store.contents(BUCKET).uploads("", "/", (&key, &id), 9).expect("page");
    assert_eq!(page.uploads.into_iter().map(|u| u.key).collect::<Vec<_>>(), ["c"]);
    assert_eq!(page.next, None);
}
}
