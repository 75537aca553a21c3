//! A policy as its document is written: JSON with the elements of AWS, each at most once.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The document.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyDocument {
    #[serde(rename = "Version")]
    pub(crate) version: Option<String>,
    #[serde(rename = "Id")]
    pub(crate) _id: Option<String>,
    #[serde(rename = "Statement")]
    pub(crate) statements: OneOrMany<StatementDocument>,
}

/// A statement of it.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatementDocument {
    #[serde(rename = "Sid")]
    pub(crate) sid: Option<String>,
    #[serde(rename = "Effect")]
    pub(crate) effect: String,
    #[serde(rename = "Principal")]
    pub(crate) principal: Option<PrincipalField>,
    #[serde(rename = "Action")]
    pub(crate) actions: Option<OneOrMany<String>>,
    #[serde(rename = "NotAction")]
    pub(crate) not_actions: Option<OneOrMany<String>>,
    #[serde(rename = "Resource")]
    pub(crate) resources: Option<OneOrMany<String>>,
    #[serde(rename = "NotResource")]
    pub(crate) not_resources: Option<OneOrMany<String>>,
    #[serde(rename = "Condition")]
    pub(crate) conditions: Option<Entries<Entries<OneOrMany<Scalar>>>>,
}

/// The principals of a statement.
#[derive(Debug)]
pub(crate) enum PrincipalField {
    Everyone,
    Aws(Vec<String>),
}

impl<'de> Deserialize<'de> for PrincipalField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PrincipalVisitor;
        impl<'de> Visitor<'de> for PrincipalVisitor {
            type Value = PrincipalField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"*\" or {\"AWS\": ...}")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<PrincipalField, E> {
                if text == "*" {
                    Ok(PrincipalField::Everyone)
                } else {
                    Err(E::custom("Principal must be \"*\" or {\"AWS\": ...}"))
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PrincipalField, A::Error> {
                let mut found = None;
                while let Some(kind) = map.next_key::<String>()? {
                    if kind != "AWS" || found.is_some() {
                        return Err(A::Error::custom(format!("Principal has {kind:?}; it may have \"AWS\" once")));
                    }
                    found = Some(map.next_value::<OneOrMany<String>>()?.0);
                }
                found.map(PrincipalField::Aws).ok_or_else(|| A::Error::custom("Principal is empty"))
            }
        }
        deserializer.deserialize_any(PrincipalVisitor)
    }
}

/// A text, number or truth value, as a text.
#[derive(Debug)]
pub(crate) struct Scalar(pub(crate) String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self(text)),
            Value::Number(number) => Ok(Self(number.to_string())),
            Value::Bool(value) => Ok(Self(value.to_string())),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                Err(D::Error::custom("a value of a condition must be a text, a number, true or false"))
            }
        }
    }
}

/// A value, or a list of values.
#[derive(Debug)]
pub(crate) struct OneOrMany<T>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a list of values")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<OneOrMany<T>, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = seq.next_element()? {
                    values.push(value);
                }
                Ok(OneOrMany(values))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OneOrMany<T>, A::Error> {
                T::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(|one| OneOrMany(vec![one]))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMany<T>, E> {
                T::deserialize(serde::de::value::StrDeserializer::new(text)).map(|one| OneOrMany(vec![one]))
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<OneOrMany<T>, E> {
                T::deserialize(serde::de::value::BoolDeserializer::new(value)).map(|one| OneOrMany(vec![one]))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<OneOrMany<T>, E> {
                T::deserialize(serde::de::value::U64Deserializer::new(value)).map(|one| OneOrMany(vec![one]))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<OneOrMany<T>, E> {
                T::deserialize(serde::de::value::I64Deserializer::new(value)).map(|one| OneOrMany(vec![one]))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<OneOrMany<T>, E> {
                T::deserialize(serde::de::value::F64Deserializer::new(value)).map(|one| OneOrMany(vec![one]))
            }
        }
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

/// An object of JSON in its order, with each name once.
#[derive(Debug)]
pub(crate) struct Entries<T>(pub(crate) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
                let mut entries: Vec<(String, T)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, T>()? {
                    if entries.iter().any(|(known, _)| *known == name) {
                        return Err(A::Error::custom(format!("{name:?} is there twice")));
                    }
                    entries.push((name, value));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}
