//! The operations, grouped by subject.

pub(crate) mod acl;
pub(crate) mod buckets;
pub(crate) mod copy;
pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod notifications;
pub(crate) mod ownership;
pub(crate) mod policy;
pub(crate) mod read;
mod source;
pub(crate) mod tags;
pub(crate) mod unset;
pub(crate) mod uploads;
pub(crate) mod write;
