//! Who makes a request, and how it came.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use steadfast_access::{Policy, Principal};
use steadfast_store::Cause;
use steadfast_users::Account;

/// The name of a client without a signature, in events.
const ANONYMOUS: &str = "anonymous";

/// Who makes a request.
#[derive(Debug, Clone)]
pub(crate) enum Identity {
    /// The holder of a configured key: may do everything.
    Root,
    /// A user: may do what its policies and that of the bucket allow.
    User(Arc<Account>),
    /// A client without a signature: may do what the policy of the bucket allows.
    Anonymous,
}

impl Identity {
    /// Whether it is the holder of a configured key.
    pub(crate) fn is_root(&self) -> bool {
        matches!(self, Self::Root)
    }

    /// Its name in logs; `None`: it has none.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Root => Some("root"),
            Self::User(account) => Some(account.name()),
            Self::Anonymous => None,
        }
    }

    /// The principal that policies judge; `None`: no policy binds this identity.
    pub(crate) fn principal(&self) -> Option<Principal<'_>> {
        match self {
            Self::Root => None,
            Self::User(account) => Some(account.principal()),
            Self::Anonymous => Some(Principal::Anonymous),
        }
    }

    /// Its own policies.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        let policies = match self {
            Self::User(account) => account.policies(),
            Self::Root | Self::Anonymous => &[],
        };
        policies.iter().map(|policy| &**policy)
    }
}

/// How a request came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientLink {
    /// The client's address; behind a trusted proxy, the one that the proxy names. `None` if what
    /// it names is no address.
    pub(crate) address: Option<IpAddr>,
    /// Whether the client's connection is encrypted, as far as the server or its trusted proxy
    /// knows.
    pub(crate) secure: bool,
}

/// Who makes a request, and how it came.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) link: ClientLink,
    /// Whether the caller must not learn that a key does not exist.
    absence_hidden: AtomicBool,
    /// Whether the judge looked at an object itself: its tags, or its access control list.
    object_judged: AtomicBool,
}

impl Caller {
    pub(crate) fn new(identity: Identity, link: ClientLink) -> Self {
        Self { identity, link, absence_hidden: AtomicBool::new(false), object_judged: AtomicBool::new(false) }
    }

    /// What an upload stores of the client that began it: the name of a user, nothing of a client
    /// without a signature; `None` for the root identity.
    pub(crate) fn initiator(&self) -> Option<&str> {
        match &self.identity {
            Identity::Root => None,
            Identity::User(account) => Some(account.name()),
            Identity::Anonymous => Some(""),
        }
    }

    /// What the event of a change says of the caller.
    pub(crate) fn cause(&self) -> Cause {
        Cause { principal: self.identity.name().unwrap_or(ANONYMOUS).into(), address: self.link.address }
    }

    /// Answers `AccessDenied` in place of `NoSuchKey`: the caller may not list the bucket.
    pub(crate) fn hide_absence(&self) {
        self.absence_hidden.store(true, Relaxed);
    }

    /// The judge looks at an object itself.
    pub(crate) fn object_is_judged(&self) {
        self.object_judged.store(true, Relaxed);
    }

    /// Whether the judge looked at an object itself.
    pub(crate) fn was_object_judged(&self) -> bool {
        self.object_judged.load(Relaxed)
    }

    pub(crate) fn absence_is_hidden(&self) -> bool {
        self.absence_hidden.load(Relaxed)
    }
}
