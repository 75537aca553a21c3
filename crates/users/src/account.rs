//! A user as requests meet it.

use std::sync::Arc;

use steadfast_access::{Policy, Principal};

/// A user, with what it may do.
#[derive(Debug)]
pub struct Account {
    name: String,
    policies: Vec<Arc<Policy>>,
}

impl Account {
    pub(crate) fn new(name: &str, policies: Vec<Arc<Policy>>) -> Self {
        Self { name: name.to_owned(), policies }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its policies allow and deny.
    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// The principal that policies judge.
    pub fn principal(&self) -> Principal<'_> {
        Principal::User(&self.name)
    }
}
