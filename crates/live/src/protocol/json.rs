//! The JSON form of the fields of messages.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The text of a value, without a copy.
pub(crate) fn into_bytes<T: From<Vec<u8>>>(value: Box<RawValue>) -> T {
    Box::<str>::from(value).into_string().into_bytes().into()
}

/// `bytes` fields in JSON: a raw JSON value, not Base64.
pub(super) mod raw {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
    use serde_json::value::RawValue;

    use super::into_bytes;

    pub fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        let text = std::str::from_utf8(bytes).map_err(ser::Error::custom)?;
        // A line break would end the message. JSON has line breaks only between tokens, where a
        // space is equal.
        let one_line = text.contains(['\n', '\r']).then(|| text.replace(['\n', '\r'], " "));
        let value: &RawValue = serde_json::from_str(one_line.as_deref().unwrap_or(text)).map_err(ser::Error::custom)?;
        value.serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>, T: From<Vec<u8>>>(d: D) -> Result<T, D::Error> {
        // As in the reference server, `null` is data like any other.
        Box::<RawValue>::deserialize(d).map(into_bytes).map_err(de::Error::custom)
    }
}

/// A map in JSON and repeated entries in Protobuf, which has the same encoding for both.
pub(super) mod by_channel {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::protocol::message::{SubscribeResult, Subscribed};

    pub fn serialize<S: Serializer>(subs: &[Subscribed], s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(subs.iter().map(|sub| (&sub.channel, &sub.result)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Subscribed>, D::Error> {
        let subs = BTreeMap::<String, SubscribeResult>::deserialize(d)?;
        Ok(subs.into_iter().map(|(channel, result)| Subscribed { channel, result }).collect())
    }
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads `null` as the default value: many back ends and clients write unset fields so.
pub(crate) fn null_is_absent<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// Reads the values of a map, `null` as the default value.
pub(crate) fn null_values_are_absent<'de, D, T>(from: D) -> Result<BTreeMap<String, T>, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    let map: BTreeMap<String, Option<T>> = null_is_absent(from)?;
    Ok(map.into_iter().map(|(name, value)| (name, value.unwrap_or_default())).collect())
}

/// Reads JSON of any kind, `null` too.
pub(crate) fn any_json<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(from).map(Some)
}
