//! Ships one cut after the other: all that it names that the archive lacks, then a head that names
//! the cut.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_flow::has_fault;
use steadfast_log::{ExtentCut, Ranges, UseCut};
use tokio::sync::{oneshot, watch};

use crate::attempts::Attempts;
use crate::changes::{Changes, DiskChange, ExtentChange, Source, UseChange, UseKind};
use crate::claim::Claimed;
use crate::cleaner::Cleaner;
use crate::document::{DocumentKind, encode};
use crate::dropped::Dropped;
use crate::error::ArchiveError;
use crate::following::{Following, PoolCut};
use crate::gather::Gather;
use crate::head::{Base, Head, NamedCut, Promise, Segment, SegmentRun};
use crate::head_writer::{KnownHeadObject, Replaced};
use crate::image::{ExtentImage, Image, UseImage, pairs};
use crate::inline::Inline;
use crate::name::{DiskId, Numbered, ObjectName, UseId};
use crate::options::{ArchiveOptions, ArchiveSabotage};
use crate::periods::Periods;
use crate::progress::Progress;
use crate::stopping::Stopping;
use crate::transfer::{Copied, Numbers, ToCopy, TransferError, Uploads};

/// Pause after a cut that was given up: its extents are marked as free meanwhile.
const GIVEN_UP_PAUSE: Duration = Duration::from_millis(50);

/// Ships cuts. It owns the archive.
pub(crate) struct Shipper {
    attempts: Attempts,
    following: Arc<Following>,
    options: ArchiveOptions,
    progress: Arc<Progress>,
    /// The last head; `None` only while it is being replaced.
    head: Option<KnownHeadObject>,
    /// The image that it names.
    image: Image,
    /// What came after the last segment or base.
    since: Changes,
    /// The bytes of it.
    inline: Inline,
    /// When its first change was shipped.
    since_begun: Option<Duration>,
    numbers: Numbers,
    /// Numbers of segments and bases are their own, so that those of segments follow each other.
    segments: Numbers,
    bases: Numbers,
    /// What was copied and is not yet named.
    ahead: BTreeMap<UseId, Copied>,
    gather: Gather,
    /// The periods whose states can be restored.
    periods: Periods,
    /// What no state names any more.
    dropped: Dropped,
    cleaner: Arc<Cleaner>,
    /// Whether records are held back until a head has them.
    holding: bool,
    /// When a piece was gathered last.
    gathered: Duration,
}

/// What a cut names of a use, and how it gets into the store.
struct Job {
    id: UseId,
    of: UseCut,
    copy: Option<ToCopy>,
}

impl Shipper {
    pub(crate) fn new(
        claimed: Claimed,
        attempts: Attempts,
        following: Arc<Following>,
        options: ArchiveOptions,
        (progress, cleaner): (Arc<Progress>, Arc<Cleaner>),
    ) -> Self {
        let Claimed { head, loaded } = claimed;
        let tenure = head.head.tenure;
        let since = head.head.cut.as_ref().map(|cut| cut.changes.clone()).unwrap_or_default();
        let gather = Gather::new(&loaded.image);
        let begun = (!since.disks.is_empty()).then(|| attempts.env().now());
        progress.head_is(&head.head, &loaded.image, loaded.periods.oldest_ms());
        Self {
            attempts,
            following,
            options,
            progress,
            head: Some(head),
            image: loaded.image,
            since,
            inline: loaded.inline,
            since_begun: begun,
            numbers: Numbers::new(tenure),
            segments: Numbers::new(tenure),
            bases: Numbers::new(tenure),
            ahead: BTreeMap::new(),
            gather,
            periods: loaded.periods,
            dropped: loaded.dropped,
            cleaner,
            holding: false,
            gathered: Duration::ZERO,
        }
    }

    /// Ships until `stop` is set and nothing is left, or the archive cannot be used any more. Sends
    /// `archived` when it has what recovery has found.
    pub(crate) async fn run(
        mut self,
        mut stop: watch::Receiver<Stopping>,
        archived: oneshot::Sender<()>,
    ) -> Result<Self, ArchiveError> {
        let mut archived = Some(archived);
        loop {
            self.look().await;
            if archived.is_some()
                && self.following.is_recovered(&self.image.last_lsns())
                && let Some(archived) = archived.take()
            {
                // The start may have been given up.
                let _ = archived.send(());
            }
            let is_due = || self.attempts.env().now().saturating_sub(self.gathered) >= self.options.interval;
            // While writes wait for the archive, there may always be changes.
            let may_gather = self.holding && self.gather.has_work() && !stop.borrow().is_set() && is_due();
            // Also without changes, the promise is to be in a head.
            let promises = self.holding && self.known_promise() == Promise::Local;
            if self.gather.has_ready() || promises || (self.following.has_changes() && !may_gather) {
                self.ship_next().await?;
                continue;
            }
            if stop.borrow_and_update().is_set() {
                self.following.look();
                if self.following.has_changes() {
                    continue;
                }
                return Ok(self);
            }
            if self.gather.has_work() {
                self.gather
                    .step(&self.following, &self.image, (&self.attempts, &mut self.numbers), &self.options)
                    .await?;
                self.gathered = self.attempts.env().now();
                continue;
            }
            tokio::select! {
                biased;
                () = self.following.changed() => {}
                () = self.following.flushed(), if self.holding => {}
                _ = stop.changed() => {}
            }
        }
    }

    fn known_promise(&self) -> Promise {
        self.head.as_ref().expect("the last replacement has ended").head.promise
    }

    /// Looks at the logs, if each write waits for the archive. Once there is a complete copy of all
    /// disks, it begins to hold them back.
    async fn look(&mut self) {
        if self.holding {
            self.following.look();
            return;
        }
        let known = self.head.as_ref().expect("the last replacement has ended");
        if self.options.promise == Promise::Local || known.head.cut.is_none() {
            return;
        }
        if known.head.promise == Promise::Archived {
            // Nothing was answered in this life.
            self.following.hold();
            self.holding = true;
        } else if self.following.has_all_disks() {
            self.following.hold();
            match self.following.flush_held().await {
                Ok(()) => self.holding = true,
                Err(e) => {
                    tracing::error!(error = %e, "writes are answered before the archive has them: a disk has failed");
                    self.attempts.env().sleep(self.options.interval).await;
                }
            }
        }
    }

    /// Ships what has changed, if it can be read.
    async fn ship_next(&mut self) -> Result<(), ArchiveError> {
        let cut = self.following.take();
        match self.ship(&cut).await {
            Ok(()) => {
                self.following.archived(&cut);
                Ok(())
            }
            Err(TransferError::Archive(e)) => Err(e),
            Err(e) => {
                if let TransferError::Unreadable(disk) = e {
                    self.following.set_aside(disk);
                    if self.holding && self.known_promise() == Promise::Local {
                        // The promise is of all disks.
                        self.following.cancel_hold();
                        self.holding = false;
                    }
                }
                self.progress.given_up();
                self.following.give_back(cut);
                self.attempts.env().sleep(GIVEN_UP_PAUSE).await;
                self.following.look();
                Ok(())
            }
        }
    }

    async fn ship(&mut self, cut: &PoolCut) -> Result<(), TransferError> {
        let (mut changes, jobs) = self.plan(cut).await?;
        let mut inline = Inline::default();
        let mut copied = self.copy(jobs, &mut inline).await?;
        for (id, of, new) in copied.drain(..) {
            let ahead = self.ahead.remove(&self.ahead_of(id)).unwrap_or_default();
            self.progress.damaged(&ahead.damaged);
            self.progress.damaged(&new.damaged);
            let mut parts = ahead.parts;
            parts.extend(new.parts);
            let change = UseChange {
                epoch: id.epoch,
                opening: id.opening,
                kind: UseKind::of(of.kind),
                sealed: of.sealed,
                durable: pairs(&of.durable),
                whole: false,
                parts,
            };
            let disk = changes.disks.get_mut(&id.disk).expect("it is a disk of the cut");
            disk.extents.insert(id.extent, ExtentChange::Used(change));
        }
        // From here on the cut is named, whatever is recycled.
        self.gather.add_to(&mut changes, &self.image);
        let is_named = |id: &UseId| changes.disks.get(&id.disk).is_some_and(|of| of.extents.contains_key(&id.extent));
        for (id, copied) in self.ahead.extract_if(.., |id, _| is_named(id)) {
            // The extent has another use by now.
            self.dropped.note(id, &copied.parts);
        }
        self.dropped.extend(self.gather.take_given_up());
        self.image.apply(&changes, &mut self.dropped).expect("a cut continues the image");
        self.gather.note(&changes, &self.image);
        self.since.add(changes);
        self.inline.extend(inline);
        self.since_begun.get_or_insert(self.attempts.env().now());
        self.name(cut).await?;
        Ok(())
    }

    /// What the cut changes in the image, beside the bytes; and what is to be copied.
    async fn plan(&self, cut: &PoolCut) -> Result<(Changes, Vec<Job>), TransferError> {
        let (mut changes, mut jobs) = (Changes::default(), Vec::new());
        for (disk, of) in &cut.disks {
            let mut extents = BTreeMap::new();
            for (extent, state) in &of.extents {
                match state {
                    ExtentCut::Free { epoch } => _ = extents.insert(*extent, ExtentChange::Free { epoch: *epoch }),
                    // What the archive has of it is whole.
                    ExtentCut::Lost { epoch } if self.has_of(*disk, *extent, *epoch) => {}
                    ExtentCut::Lost { epoch } => _ = extents.insert(*extent, ExtentChange::Lost { epoch: *epoch }),
                    ExtentCut::InUse(state) => {
                        let known = self.known(*disk, *extent, state);
                        if known.is_some_and(|known| known.sealed) {
                            // It is complete, whatever damage finds.
                            continue;
                        }
                        let opening = known.map_or(state.opening, |known| known.opening);
                        let id = UseId { disk: *disk, extent: *extent, epoch: state.epoch, opening };
                        let missing = self.missing(id, state);
                        let copy = if missing.is_empty() {
                            None
                        } else {
                            let reader = of.log.read_use(*extent, state.epoch).await;
                            if reader.is_none() && has_fault(self.options.sabotage, ArchiveSabotage::RecycledLeftOut) {
                                continue;
                            }
                            let reader = reader.ok_or(TransferError::Recycled)?;
                            Some(ToCopy { id, reader, missing })
                        };
                        jobs.push(Job { id, of: state.clone(), copy });
                    }
                }
            }
            let change = DiskChange { about: of.about.clone(), counters: of.counters, extents };
            changes.disks.insert(*disk, change);
        }
        for (disk, of) in &self.image.disks {
            if of.about.left_ms.is_none() && !cut.members.contains(disk) && !cut.members.is_empty() {
                let mut about = of.about.clone();
                about.left_ms = Some(cut.time_ms);
                let change = DiskChange { about, counters: of.counters, extents: BTreeMap::new() };
                changes.disks.insert(*disk, change);
            }
        }
        Ok((changes, jobs))
    }

    fn used(&self, disk: DiskId, extent: u32) -> Option<&UseImage> {
        match self.image.disks.get(&disk)?.extents.get(&extent)? {
            ExtentImage::Used(of) => Some(of),
            _ => None,
        }
    }

    /// Whether the image has the use of an extent whose data is gone from the disk. Epoch 0 is
    /// unknown.
    fn has_of(&self, disk: DiskId, extent: u32, epoch: u64) -> bool {
        self.used(disk, extent).is_some_and(|of| epoch == 0 || of.epoch >= epoch)
    }

    /// The same use in the image. Opening 0 is unknown: the header is damaged.
    fn known(&self, disk: DiskId, extent: u32, of: &UseCut) -> Option<&UseImage> {
        let known = self.used(disk, extent)?;
        (known.epoch == of.epoch && (of.opening == 0 || known.opening == of.opening)).then_some(known)
    }

    /// The durable ranges of a use that are not in the store.
    fn missing(&self, id: UseId, of: &UseCut) -> Ranges {
        let missing = match self.image.find(id) {
            Some(known) => of.durable.without(&known.durable),
            None => of.durable.clone(),
        };
        match self.ahead.get(&self.ahead_of(id)) {
            Some(ahead) => missing.without(&ahead.ranges),
            None => missing,
        }
    }

    /// Under which use the copied pieces are: of the same one, unless a bug ignores the epoch.
    fn ahead_of(&self, id: UseId) -> UseId {
        let place = |of: &UseId| (of.disk, of.extent);
        let any = || self.ahead.keys().copied().find(|of| place(of) == place(&id)).unwrap_or(id);
        if has_fault(self.options.sabotage, ArchiveSabotage::AnyEpoch) { any() } else { id }
    }

    /// Copies what is missing: small ranges into documents, large ones into pieces.
    async fn copy(
        &mut self,
        jobs: Vec<Job>,
        inline: &mut Inline,
    ) -> Result<Vec<(UseId, UseCut, Copied)>, TransferError> {
        let bytes = |job: &Job| job.copy.as_ref().map_or(0, |copy| copy.missing.bytes());
        let all: u64 = jobs.iter().map(bytes).sum();
        let fits_head = all <= self.options.inline_bytes_max as u64 / 2;
        let (mut small, mut large, mut done, mut small_bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for mut job in jobs {
            let missing = bytes(&job);
            let Some(copy) = job.copy.take() else {
                done.push((job.id, job.of, Copied::default()));
                continue;
            };
            let is_commit = UseKind::of(job.of.kind) == UseKind::Commit;
            // One that is shipped whole need not be shipped again.
            let whole =
                job.of.sealed && self.image.find(job.id).is_none() && missing > self.options.segment_bytes_max / 16;
            let is_small = fits_head || (is_commit && !whole);
            if is_small && small_bytes + missing <= self.options.segment_bytes_max {
                small_bytes += missing;
                small.push((copy, job));
            } else {
                large.push((copy, job));
            }
        }
        for (copy, job) in small {
            let copied = copy.into_inline(self.options.piece_bytes, inline).await?;
            done.push((job.id, job.of, copied));
        }
        let mut uploads = Uploads::new(&self.attempts, &mut self.numbers, &mut self.ahead, &self.options);
        let mut taken = Ok(());
        for (copy, job) in large {
            if taken.is_ok() {
                taken = uploads.take(copy).await;
            }
            done.push((job.id, job.of, Copied::default()));
        }
        // What is answered serves the next cut.
        uploads.finish().await?;
        if !has_fault(self.options.sabotage, ArchiveSabotage::RecycledLeftOut) {
            taken?;
        }
        Ok(done)
    }

    /// Writes the documents that the cut needs, and the head that names it.
    async fn name(&mut self, cut: &PoolCut) -> Result<(), ArchiveError> {
        let known = self.head.as_ref().expect("the last replacement has ended");
        let Head { version, tenure, owner, machine, former, cut: before, .. } = known.head.clone();
        let promise = if self.holding { Promise::Archived } else { Promise::Local };
        let time_ms = cut.time_ms.max(before.as_ref().map_or(0, |cut| cut.time_ms));
        let segments_age = self.since_begun.map_or(Duration::ZERO, |begun| self.attempts.env().now() - begun);
        let mut expired = Vec::new();
        let named = match before {
            Some(before) if !self.needs_base(&before, time_ms) => {
                let mut segments = before.segments;
                let payload = self.inline.lay_out(&mut self.since);
                let len = encode(DocumentKind::Head, &self.since, &payload).len();
                if len > self.options.inline_bytes_max || segments_age >= self.options.segment_age {
                    let by = self.segments.next();
                    let changes = std::mem::take(&mut self.since);
                    let body = encode(DocumentKind::Segment, &Segment { time_ms, changes: changes.clone() }, &payload);
                    self.attempts.create(&ObjectName::Segment(by).to_string(), &[body]).await?;
                    self.image.settle(&changes, |at| Source::Segment { by, at });
                    self.written();
                    SegmentRun::push(&mut segments, by);
                }
                NamedCut { time_ms, base: before.base, segments, changes: Changes::default() }
            }
            before => {
                let by = self.bases.next();
                expired = self.begin_period(by, time_ms, before).await?;
                let mut changes = self.image.to_changes();
                let payload = self.inline.lay_out(&mut changes);
                let base = Base { time_ms, before: self.periods.before().to_vec(), changes: changes.clone() };
                let body = encode(DocumentKind::Base, &base, &payload);
                self.attempts.create(&ObjectName::Base(by).to_string(), &[body]).await?;
                self.image.settle(&changes, |at| Source::Base { by, at });
                self.since = Changes::default();
                self.written();
                NamedCut { time_ms, base: by, segments: Vec::new(), changes: Changes::default() }
            }
        };
        let payload = self.inline.lay_out(&mut self.since);
        let named = NamedCut { changes: self.since.clone(), ..named };
        let next = Head {
            version: version + 1,
            tenure,
            owner,
            machine,
            time_ms: self.attempts.env().wall_ms(),
            promise,
            closed: false,
            cut: Some(named),
            former,
        };
        if has_fault(self.options.sabotage, ArchiveSabotage::ReleasedEarly) {
            self.following.release(&self.image.last_lsns());
        }
        let head = self.replace(next, &payload).await?;
        self.progress.named(&head.head, &self.image, self.periods.oldest_ms());
        if self.holding {
            self.following.release(&self.image.last_lsns());
        }
        self.head = Some(head);
        self.cleaner.expire(expired);
        Ok(())
    }

    /// Writes the last head of this process, which says that it has all that was answered.
    ///
    /// # Errors
    /// As [`Shipper::run`].
    pub(crate) async fn close(mut self) -> Result<(), ArchiveError> {
        let known = self.head.as_ref().expect("the last replacement has ended");
        let (version, time_ms) = (known.head.version + 1, self.attempts.env().wall_ms());
        let next = Head { version, time_ms, closed: true, ..known.head.clone() };
        let payload = known.payload.clone();
        self.replace(next, &[payload]).await.map(drop)
    }

    async fn replace(&mut self, next: Head, payload: &[Bytes]) -> Result<KnownHeadObject, ArchiveError> {
        let known = self.head.take().expect("the last replacement has ended");
        match known.replace(&self.attempts, next, payload).await? {
            Replaced::Done(head) => Ok(head),
            Replaced::Taken(by) => Err(ArchiveError::Superseded {
                machine: by.machine,
                tenure: by.tenure,
                kept: self.progress.archived_lsns(),
            }),
        }
    }

    /// Begins a period with the base `by`: stores what the period before named and the image does
    /// not. Returns the bases that followed expired periods.
    async fn begin_period(
        &mut self,
        by: Numbered,
        time_ms: u64,
        before: Option<NamedCut>,
    ) -> Result<Vec<Numbered>, ArchiveError> {
        let has_fault = |fault| has_fault(self.options.sabotage, fault);
        let retention_ms = u64::try_from(self.options.retention.as_millis()).unwrap_or(u64::MAX);
        self.image.forget_left(time_ms.saturating_sub(retention_ms), &mut self.dropped);
        let ended = before.and_then(|before| self.periods.end(before.segments));
        if let Some(ended) = ended {
            let live = self.image.objects().filter(|_| !has_fault(ArchiveSabotage::LiveDropped));
            let list = encode(DocumentKind::Dropped, &self.dropped.take(ended, live), &[]);
            self.attempts.create(&ObjectName::Dropped(by).to_string(), &[list]).await?;
        }
        let mut expired = self.periods.begin(by, time_ms, self.options.retention);
        expired.extend(Some(by).filter(|_| has_fault(ArchiveSabotage::RetentionIgnored)));
        Ok(expired)
    }

    fn needs_base(&self, before: &NamedCut, time_ms: u64) -> bool {
        // The wall clock: starts may be more frequent than bases.
        let age_ms = time_ms.saturating_sub(self.periods.newest_ms().unwrap_or(0));
        SegmentRun::count(&before.segments) >= self.options.segments_max
            || u128::from(age_ms) >= self.options.base_age.as_millis()
    }

    /// What came after the segment before is in a document of its own.
    fn written(&mut self) {
        self.inline.clear();
        self.since_begun = None;
    }
}
