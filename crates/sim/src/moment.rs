//! An earlier state of the pool and the model's knowledge at that time: what a restore from a copy
//! of the disks brings back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{Key, Model};
use crate::platter::Image;
use crate::run_state::{PublishedHistory, ReceivedEvents, Upload};
use crate::shared::Shared;

/// What the clients know of the pool at a moment.
pub(crate) struct ClientKnowledge {
    model: Model,
    uploads: Vec<Upload>,
    made: BTreeSet<Arc<str>>,
    homes: BTreeMap<Key, usize>,
    channels: PublishedHistory,
    received: ReceivedEvents,
}

impl ClientKnowledge {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self {
            model: shared.model.read().clone(),
            uploads: shared.uploads.read().clone(),
            made: shared.made.read().clone(),
            homes: shared.homes.read().clone(),
            channels: shared.channels.read().clone(),
            received: shared.received.read().clone(),
        }
    }

    /// Restores the knowledge. Later writes count as never written.
    pub(crate) fn restore(&self, shared: &Shared) {
        shared.model.lock().roll_back_to(&self.model);
        shared.channels.lock().roll_back_to(&self.channels);
        shared.uploads.lock().clone_from(&self.uploads);
        shared.made.lock().clone_from(&self.made);
        shared.homes.lock().clone_from(&self.homes);
        let mut received = self.received.clone();
        received.lose_epochs();
        *shared.received.lock() = received;
    }
}

/// An earlier state of the pool, taken while the power is off.
pub(crate) struct Moment {
    images: Vec<Image>,
    knowledge: ClientKnowledge,
    /// Whether the store had been closed.
    pub(crate) clean: bool,
}

impl Moment {
    pub(crate) fn new(shared: &Shared, clean: bool) -> Self {
        let images = shared.devices.iter().map(|device| device.lock().image()).collect();
        Self { images, knowledge: ClientKnowledge::new(shared), clean }
    }

    /// Restores the pool and the knowledge.
    pub(crate) fn restore(&self, shared: &Shared) {
        for (device, image) in shared.devices.iter().zip(&self.images) {
            device.lock().restore(image);
        }
        self.knowledge.restore(shared);
    }
}
