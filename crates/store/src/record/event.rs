//! Object events and notification settings, as stored in records.
//!
//! ```text
//! notifications = 1 document:s rules:v (id:s target:s kinds:1 prefix:s suffix:s)*
//! event         = 1 kind:1 bucket:s key:s size:v etag:s targets:v (rule:s target:s)* [cause]
//! cause         = principal:s address:s      as text; no address: empty
//! ```
//!
//! Each begins with its format number. Builds from before causes do not read what follows the
//! targets. Notifications follow the durability in a bucket's record; an
//! event is the body of a publication.

use super::wire::{Dec, Malformed, put_bytes, put_varint};
use crate::events::{Cause, EventKind, EventTarget, NotificationRule, Notifications, ObjectEvent};

const FORMAT: u8 = 1;

fn number(kind: EventKind) -> u8 {
    match kind {
        EventKind::Put => 0,
        EventKind::Copy => 1,
        EventKind::Complete => 2,
        EventKind::Delete => 3,
    }
}

fn format(dec: &mut Dec<'_>) -> Result<(), Malformed> {
    if dec.u8()? == FORMAT { Ok(()) } else { Err(Malformed("event: unknown format")) }
}

fn text(dec: &mut Dec<'_>) -> Result<String, Malformed> {
    dec.str().map(str::to_owned)
}

fn cause(dec: &mut Dec<'_>) -> Result<Cause, Malformed> {
    let (principal, address) = (dec.str()?.into(), dec.str()?);
    let address = match address {
        "" => None,
        text => Some(text.parse().map_err(|_| Malformed("event: an address is none"))?),
    };
    Ok(Cause { principal, address })
}

impl Notifications {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        put_bytes(out, self.document.as_bytes());
        put_varint(out, self.rules.len() as u64);
        for rule in &self.rules {
            put_bytes(out, rule.id.as_bytes());
            put_bytes(out, rule.target.as_bytes());
            out.push(rule.kinds.iter().fold(0, |bits, kind| bits | 1 << number(*kind)));
            put_bytes(out, rule.prefix.as_bytes());
            put_bytes(out, rule.suffix.as_bytes());
        }
    }

    pub(crate) fn decode(dec: &mut Dec<'_>) -> Result<Self, Malformed> {
        format(dec)?;
        let document = text(dec)?;
        let mut rules = Vec::new();
        for _ in 0..dec.varint()? {
            let (id, target, kinds) = (text(dec)?, text(dec)?, dec.u8()?);
            let kinds = EventKind::ALL.into_iter().filter(|kind| kinds >> number(*kind) & 1 == 1).collect();
            rules.push(NotificationRule { id, target, kinds, prefix: text(dec)?, suffix: text(dec)? });
        }
        Ok(Self { rules, document })
    }
}

impl ObjectEvent {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.key.len());
        out.extend_from_slice(&[FORMAT, number(self.kind)]);
        put_bytes(&mut out, self.bucket.as_bytes());
        put_bytes(&mut out, self.key.as_bytes());
        put_varint(&mut out, self.size);
        put_bytes(&mut out, self.etag.as_bytes());
        put_varint(&mut out, self.targets.len() as u64);
        for target in &self.targets {
            put_bytes(&mut out, target.rule.as_bytes());
            put_bytes(&mut out, target.target.as_bytes());
        }
        if let Some(cause) = &self.cause {
            put_bytes(&mut out, cause.principal.as_bytes());
            put_bytes(&mut out, cause.address.map(|address| address.to_string()).unwrap_or_default().as_bytes());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(bytes);
        format(&mut dec)?;
        let kind = dec.u8()?;
        let kind = EventKind::ALL.into_iter().find(|k| number(*k) == kind).ok_or(Malformed("event: unknown kind"))?;
        let (bucket, key, size, etag) = (text(&mut dec)?, text(&mut dec)?, dec.varint()?, text(&mut dec)?);
        let mut targets = Vec::new();
        for _ in 0..dec.varint()? {
            targets.push(EventTarget { rule: text(&mut dec)?, target: text(&mut dec)? });
        }
        let cause = if dec.0.is_empty() { None } else { Some(cause(&mut dec)?) };
        Ok(Self { kind, bucket, key, size, etag, targets, cause })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn rules()(id in ".{0,8}", target in ".{0,20}", kinds in 0u8..16, prefix in ".{0,8}", suffix in ".{0,8}") -> NotificationRule {
            let kinds = EventKind::ALL.into_iter().filter(|kind| kinds >> number(*kind) & 1 == 1).collect();
            NotificationRule { id, target, kinds, prefix, suffix }
        }
    }

    proptest! {
        #[test]
        fn notifications_come_back(document in ".{0,30}", rules in proptest::collection::vec(rules(), 0..4)) {
            let notifications = Notifications { rules, document };
            let mut out = Vec::new();
            notifications.encode(&mut out);
            prop_assert_eq!(Notifications::decode(&mut Dec(&out)), Ok(notifications));
        }

        #[test]
        fn events_come_back(kind in 0usize..4, bucket in ".{0,8}", key in ".{0,30}", size: u64, etag in ".{0,8}", targets in proptest::collection::vec((".{0,8}", ".{0,8}"), 0..4), cause in proptest::option::of((".{0,8}", any::<Option<std::net::IpAddr>>()))) {
            let targets = targets.into_iter().map(|(rule, target)| EventTarget { rule, target }).collect();
            let cause = cause.map(|(principal, address)| Cause { principal: principal.into(), address });
            let event = ObjectEvent { kind: EventKind::ALL[kind], bucket, key, size, etag, targets, cause };
            prop_assert_eq!(ObjectEvent::decode(&event.encode()), Ok(event));
        }

        #[test]
        fn any_bytes_are_decoded_without_panic(bytes: Vec<u8>) {
            let _ = ObjectEvent::decode(&bytes);
            let _ = ObjectEvent::decode(&[&[FORMAT], &bytes[..]].concat());
            let _ = Notifications::decode(&mut Dec(&bytes));
            let _ = Notifications::decode(&mut Dec(&[&[FORMAT], &bytes[..]].concat()));
        }
    }
}
