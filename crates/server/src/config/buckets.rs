//! Buckets that the configuration declares: `[[buckets]]` tables.

use std::path::PathBuf;

use steadfast_s3::is_bucket_name;
use toml::de::DeValue;

use super::error::nearest;
use super::setting::{Input, Setting};

/// A bucket that is created at the start if it does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSpec {
    /// Its name.
    pub name: String,
    /// A file with its policy; `None`: it has none.
    pub policy_file: Option<PathBuf>,
}

const KEYS: [&str; 2] = ["name", "policy_file"];

impl BucketSpec {
    fn from_value(value: &DeValue<'_>) -> Result<Self, String> {
        let DeValue::Table(table) = value else {
            return Err("write [[buckets]] on a line, and name and policy_file below".to_owned());
        };
        let (mut name, mut policy_file) = (String::new(), None);
        for (key, value) in table {
            let input = Input::Value(value.get_ref());
            match key.get_ref().as_ref() {
                "name" => name = String::read(input)?,
                "policy_file" => policy_file = Some(PathBuf::read(input)?),
                other => {
                    let near = nearest(other, KEYS).map(|near| format!(": did you mean `{near}`?"));
                    return Err(format!(
                        "a bucket has no `{other}`{}",
                        near.unwrap_or("; it has name and policy_file".into())
                    ));
                }
            }
        }
        match is_bucket_name(&name) {
            true => Ok(Self { name, policy_file }),
            false => Err(format!("{name:?} is not a name for a bucket")),
        }
    }

    /// The bucket as a TOML table.
    pub fn to_toml(&self) -> String {
        let policy = self.policy_file.as_ref().map(|file| format!("policy_file = {}\n", file.to_toml()));
        format!("\n[[buckets]]\nname = {}\n{}", self.name.to_toml(), policy.unwrap_or_default())
    }
}

/// Reads the tables.
///
/// # Errors
/// The first mistake.
pub(super) fn read(value: &DeValue<'_>) -> Result<Vec<BucketSpec>, String> {
    let DeValue::Array(items) = value else {
        return Err("write [[buckets]], with two brackets, for each bucket".to_owned());
    };
    let specs = items.iter().map(|item| BucketSpec::from_value(item.get_ref())).collect::<Result<Vec<_>, _>>()?;
    match (1..specs.len()).find(|at| specs[..*at].iter().any(|spec| spec.name == specs[*at].name)) {
        Some(at) => Err(format!("there are two buckets of the name {:?}", specs[at].name)),
        None => Ok(specs),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    #[test]
    fn buckets_are_read_and_written() {
        let text = "[[buckets]]\nname = \"media\"\npolicy_file = \"media.json\"\n[[buckets]]\nname = \"uploads\"\n";
        let config = parse(text).expect("valid");
        assert_eq!((config.buckets.len(), &config.buckets[1].name[..]), (2, "uploads"));
        assert_eq!(parse(&config.to_toml()).expect("valid").buckets, config.buckets);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("[buckets]\nname = \"media\"", "two brackets"),
            ("buckets = [\"media\"]", "on a line"),
            ("[[buckets]]\nnam = \"media\"", "did you mean `name`?"),
            ("[[buckets]]\nname = \"A/b\"", "not a name"),
            ("[[buckets]]\npolicy_file = \"x\"", "not a name"),
            ("[[buckets]]\nname = \"media\"\n[[buckets]]\nname = \"media\"", "two buckets"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
