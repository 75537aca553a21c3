//! What the states name that can be restored.

use steadfast_net::RemoteError;

use crate::attempts::{Attempts, Pause};
use crate::document::{DocumentKind, decode};
use crate::error::ArchiveError;
use crate::load::{DOCUMENT_BYTES_MAX, Loaded};
use crate::name::{Numbered, ObjectName};

/// The objects that a head and the kept states before it name.
#[derive(Debug)]
pub(crate) struct NamedObjects {
    /// Kinds and numbers, in order: names take several times as much memory.
    keys: Vec<(u8, Numbered)>,
    /// The lists of dropped objects, which earlier states name.
    lists: Vec<Numbered>,
}

impl NamedObjects {
    /// Those of a head that was read. [`NamedObjects::complete`] adds those of earlier states.
    pub(crate) fn new(loaded: &Loaded) -> Self {
        let all = loaded.image.objects().chain(loaded.dropped.objects()).chain(loaded.periods.documents());
        Self { keys: all.map(ObjectName::key).collect(), lists: loaded.periods.lists().collect() }
    }

    /// Reads the lists of dropped objects.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when one is missing or was changed.
    pub(crate) async fn complete(mut self, attempts: &Attempts) -> Result<Self, ArchiveError> {
        for list in std::mem::take(&mut self.lists) {
            let missing = || ArchiveError::broken(&ObjectName::Dropped(list).to_string(), "it does not exist");
            let objects = Self::listed(attempts, list).await?.ok_or_else(missing)?;
            self.keys.extend(objects.into_iter().map(ObjectName::key));
        }
        self.keys.sort_unstable();
        self.keys.dedup();
        Ok(self)
    }

    /// Whether it is one of them.
    pub(crate) fn has(&self, object: ObjectName) -> bool {
        assert!(self.lists.is_empty(), "the lists were read");
        self.keys.binary_search(&object.key()).is_ok()
    }

    /// The objects of a list; `None` if there is no such list. It is read again until the store
    /// answers, also when it refuses: keys are exchanged now and then.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] if it was changed.
    pub(crate) async fn listed(attempts: &Attempts, list: Numbered) -> Result<Option<Vec<ObjectName>>, ArchiveError> {
        let name = ObjectName::Dropped(list).to_string();
        let mut pause = Pause::new();
        let object = loop {
            match attempts.read_once(&name, None, DOCUMENT_BYTES_MAX).await {
                Ok(object) => break object,
                Err(RemoteError::Missing) => return Ok(None),
                Err(_) => attempts.wait(&mut pause).await?,
            }
        };
        let decoded = decode(DocumentKind::Dropped, &object.body);
        decoded.map(|(objects, _)| Some(objects)).map_err(ArchiveError::document(&name))
    }
}
