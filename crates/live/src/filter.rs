//! Filters on the tags of publications: a filtered subscription gets only matching publications.

use std::collections::BTreeMap;

use crate::protocol::message::FilterNode;

/// Conditions in one filter, at most.
const NODES_MAX: usize = 64;
/// Nesting depth of conditions, at most.
const DEPTH_MAX: usize = 8;

/// Whether a filter is valid.
pub fn is_valid(filter: &FilterNode) -> bool {
    fn check(node: &FilterNode, depth: usize, left: &mut usize) -> bool {
        if *left == 0 || depth > DEPTH_MAX {
            return false;
        }
        *left -= 1;
        match node.op.as_str() {
            "" => {
                !node.key.is_empty()
                    && matches!(
                        node.cmp.as_str(),
                        "eq" | "neq" | "in" | "nin" | "ex" | "nex" | "sw" | "ew" | "ct" | "lt" | "lte" | "gt" | "gte"
                    )
            }
            "not" => node.nodes.len() == 1 && check(&node.nodes[0], depth + 1, left),
            "and" | "or" => !node.nodes.is_empty() && node.nodes.iter().all(|n| check(n, depth + 1, left)),
            _ => false,
        }
    }
    check(filter, 0, &mut NODES_MAX.clone())
}

/// Whether a publication with these tags matches a valid filter.
pub fn matches(node: &FilterNode, tags: &BTreeMap<String, String>) -> bool {
    match node.op.as_str() {
        "and" => node.nodes.iter().all(|n| matches(n, tags)),
        "or" => node.nodes.iter().any(|n| matches(n, tags)),
        "not" => !node.nodes.iter().any(|n| matches(n, tags)),
        _ => compare(node, tags.get(&node.key)),
    }
}

fn compare(node: &FilterNode, value: Option<&String>) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    let ordered = |holds: fn(&f64, &f64) -> bool| {
        value.and_then(|v| Some(holds(&number(v)?, &number(&node.val)?))).unwrap_or_default()
    };
    match (node.cmp.as_str(), value) {
        ("ex", value) => value.is_some(),
        ("nex", value) => value.is_none(),
        ("eq", Some(value)) => *value == node.val,
        ("neq", value) => value.is_none_or(|value| *value != node.val),
        ("in", Some(value)) => node.vals.contains(value),
        ("nin", value) => value.is_none_or(|value| !node.vals.contains(value)),
        ("sw", Some(value)) => value.starts_with(&node.val),
        ("ew", Some(value)) => value.ends_with(&node.val),
        ("ct", Some(value)) => value.contains(&node.val),
        ("lt", _) => ordered(f64::lt),
        ("lte", _) => ordered(f64::le),
        ("gt", _) => ordered(f64::gt),
        ("gte", _) => ordered(f64::ge),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(cmp: &str, key: &str, val: &str) -> FilterNode {
        let vals = val.split('|').map(str::to_owned).collect();
        FilterNode { key: key.into(), cmp: cmp.into(), val: val.into(), vals, ..FilterNode::default() }
    }

    #[test]
    fn conditions_compare_and_combine() {
        let tags: BTreeMap<String, String> = [("a", "5"), ("b", "hello")].map(|(k, v)| (k.into(), v.into())).into();
        for (cmp, key, val, holds) in [
            ("eq", "a", "5", true),
            ("eq", "c", "5", false),
            ("neq", "c", "5", true),
            ("in", "b", "x|hello", true),
            ("nin", "b", "x|hello", false),
            ("nin", "c", "x", true),
            ("ex", "a", "", true),
            ("nex", "a", "", false),
            ("sw", "b", "he", true),
            ("ew", "b", "lo", true),
            ("ct", "b", "zz", false),
            ("lt", "a", "10", true),
            ("lte", "a", "5", true),
            ("gt", "a", "5", false),
            ("gte", "b", "1", false),
        ] {
            let node = leaf(cmp, key, val);
            assert!(is_valid(&node));
            assert_eq!(matches(&node, &tags), holds, "{cmp} {key} {val}");
            let not = FilterNode { op: "not".into(), nodes: vec![node.clone()], ..FilterNode::default() };
            assert_eq!(matches(&not, &tags), !holds);
            let nodes = vec![node, leaf("ex", "a", "")];
            let and = FilterNode { op: "and".into(), nodes: nodes.clone(), ..FilterNode::default() };
            let or = FilterNode { op: "or".into(), nodes, ..FilterNode::default() };
            assert_eq!((matches(&and, &tags), matches(&or, &tags)), (holds, true));
        }
    }

    #[test]
    fn invalid_filters_are_refused() {
        let mut deep = leaf("eq", "a", "1");
        for _ in 0..9 {
            deep = FilterNode { op: "not".into(), nodes: vec![deep], ..FilterNode::default() };
        }
        let wide = FilterNode { op: "or".into(), nodes: vec![leaf("eq", "a", "1"); 64], ..FilterNode::default() };
        let empty = FilterNode { op: "and".into(), ..FilterNode::default() };
        for node in [leaf("is", "a", "1"), leaf("eq", "", "1"), deep, wide, empty] {
            assert!(!is_valid(&node));
        }
    }
}
