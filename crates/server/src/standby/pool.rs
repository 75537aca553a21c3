//! The disks of a standby.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_archive::{ArchivedDisk, ArchivedPool, DiskId, RestorePlace, StandbyDisk};
use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::format::EXTENTS_START;

use crate::config::{Config, DiskSet};
use crate::datadir::DataDir;
use crate::disks::open::open_durable;
use crate::disks::plan::{Plan, Role, Scope};
use crate::restoring::assign::{Assigned, assign};
use crate::restoring::mark::MarkedDisk;
use crate::restoring::places::DiskPlaces;
use crate::restoring::standby_mark::StandbyMark;

/// The disks of a standby, as the configuration names them.
pub(super) struct StandbyPool<'a> {
    pub(super) config: &'a Config,
    pub(super) data: &'a DataDir,
    pub(super) env: &'a Env,
}

impl StandbyPool<'_> {
    /// Finds a place for each disk of the archived pool that has none yet, and keeps that.
    ///
    /// # Errors
    /// What is wrong with the configuration, or with the disks.
    pub(super) fn mark(&self, from: &str, newest: &ArchivedPool) -> Result<StandbyMark, String> {
        let known = StandbyMark::load(self.data)?;
        if let Some(known) = known.as_ref().filter(|known| known.from != from) {
            let mark = self.data.standby();
            return Err(format!(
                "this standby follows {}, and archive.to names {from}. To give it up, remove {} and its disks",
                known.from,
                mark.display()
            ));
        }
        let new_id = || format!("{:016x}{:016x}", self.env.random_u64(), self.env.random_u64());
        let mut mark = known.unwrap_or_else(|| StandbyMark { from: from.to_owned(), id: new_id(), disks: Vec::new() });
        let of_pool = newest.disks();
        let has_place = |of: &&ArchivedDisk| mark.disks.iter().any(|disk| disk.disk == of.id.to_string());
        let new: Vec<String> = of_pool.iter().filter(|of| !has_place(of)).map(|of| of.id.to_string()).collect();
        if new.is_empty() {
            return Ok(mark);
        }
        if mark.disks.is_empty() {
            // What an earlier pool of this directory drew must not make the standby an owner.
            self.data.forget_archive()?;
        }
        // Of a pool that is new as a whole, each disk has a place of its name, or any.
        let wanted = if mark.disks.is_empty() { Vec::new() } else { new };
        let plan = self.plan()?;
        let taken = |set: &DiskSet| mark.disks.iter().any(|disk| disk.paths == set.durable);
        let numbered = self
            .config
            .disk_sets()
            .into_iter()
            .map(|set| if taken(&set) { DiskSet { hint: true, ..set } } else { set });
        let assigned = assign(&of_pool, &wanted, numbered.collect(), &plan)?;
        let refusals = plan.refusals_of(|disk| assigned.iter().any(|one| one.number == disk.disk));
        if !refusals.is_empty() {
            return Err(refusals.join("\n"));
        }
        mark.disks.extend(assigned.iter().map(|one: &Assigned| MarkedDisk {
            disk: one.of.id.to_string(),
            paths: one.set.durable.clone(),
            files: one.new_files,
            reached: 0,
        }));
        mark.store(self.data)?;
        Ok(mark)
    }

    fn plan(&self) -> Result<Plan, String> {
        Plan::make(self.config, Scope { pool: true, force: false, begun: false })
    }

    /// Opens the disks.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub(super) async fn open(
        &self,
        mark: &StandbyMark,
        newest: &ArchivedPool,
    ) -> Result<BTreeMap<DiskId, StandbyDisk>, String> {
        let (plan, sets) = (self.plan()?, self.config.disk_sets());
        let places = DiskPlaces { config: self.config, env: self.env };
        let mut disks = BTreeMap::new();
        for of in newest.disks() {
            let marked = mark.disks.iter().find(|disk| disk.disk == of.id.to_string()).expect("each has a place");
            let Some(number) = sets.iter().position(|set| set.durable == marked.paths) else {
                let paths: Vec<String> = marked.paths.iter().map(|path| path.display().to_string()).collect();
                return Err(format!("the standby writes {}: name it in the configuration", paths.join(", ")));
            };
            let set = &sets[number];
            let refusals = plan.refusals_of(|disk| disk.disk == number && disk.role == Role::Fast);
            if !refusals.is_empty() {
                return Err(refusals.join("\n"));
            }
            let disk = match open_durable(self.config, set, self.env).await {
                Ok(there) if RestorePlace::is_begun(&there, mark.id()).await => {
                    drop(there);
                    places.open_again(set).await?
                }
                there => {
                    // It is not what this standby has written: it must be blank.
                    let is_blank = match &there {
                        Ok(there) => set.durable.len() > 1 && reads_as_zeros(there).await,
                        Err(_) => false,
                    };
                    drop(there);
                    let refusals = plan.refusals_of(|disk| {
                        disk.disk == number && disk.role == Role::Durable && !disk.found.contents.is_empty()
                    });
                    if !is_blank && !refusals.is_empty() {
                        return Err(refusals.join("\n"));
                    }
                    places.open(set, marked.files).await?
                }
            };
            disks.insert(of.id, StandbyDisk { disk, blank: marked.files });
        }
        Ok(disks)
    }
}

/// Whether a disk reads as zeros where a log or a mark would be, as a stripe does that was just
/// formatted.
async fn reads_as_zeros(disk: &Arc<dyn Disk>) -> bool {
    let read = disk.read(0, EXTENTS_START as usize).await;
    read.is_ok_and(|read| read.iter().all(|byte| *byte == 0))
}
