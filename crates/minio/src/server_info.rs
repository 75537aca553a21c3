//! The state of the server, as `mc admin info` shows it.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast_store::{DiskState, DiskStatus, Store};

use crate::failure::Failure;

/// The state of the server. Its disks are one set of MinIO's, without parity.
pub(crate) struct ServerInfo<'a> {
    pub(crate) store: &'a Store,
    pub(crate) uptime: Duration,
}

impl ServerInfo<'_> {
    /// `InfoMessage` of madmin-go. `host` is the address of this server.
    pub(crate) fn shown(&self, host: &str) -> Result<Vec<u8>, Failure> {
        let status = self.store.status();
        let online = status.disks.iter().filter(|disk| state(disk) == "ok").count();
        let drives: Vec<Value> = status.disks.iter().enumerate().map(|(index, disk)| drive(index, disk)).collect();
        let info = json!({
            "mode": "online",
            "region": "us-east-1",
            "deploymentID": status.disks.first().map(|disk| &disk.id),
            "buckets": { "count": status.buckets },
            "objects": { "count": status.objects },
            "versions": { "count": 0 },
            "deletemarkers": { "count": 0 },
            "usage": { "size": status.object_bytes },
            "backend": {
                "backendType": "Erasure",
                "onlineDisks": online,
                "offlineDisks": drives.len() - online,
                "standardSCParity": 0,
                "rrSCParity": 0,
                "totalSets": [1],
                "totalDrivesPerSet": [drives.len()],
            },
            "servers": [{
                "state": "online",
                "endpoint": host,
                "uptime": self.uptime.as_secs(),
                "version": concat!("Steadfast ", env!("CARGO_PKG_VERSION")),
                "network": { host: "online" },
                "poolNumber": 1,
                "poolNumbers": [1],
                "drives": drives,
            }],
        });
        Ok(info.to_string().into_bytes())
    }
}

fn state(disk: &DiskStatus) -> &'static str {
    match (disk.state, &disk.failure) {
        (DiskState::Ok, None) => "ok",
        (DiskState::Ok | DiskState::ReadOnly, _) => "faulty",
        (DiskState::Missing | DiskState::Closed, _) => "offline",
    }
}

/// `Disk` of madmin-go.
fn drive(index: usize, disk: &DiskStatus) -> Value {
    let mut drive = json!({
        "endpoint": disk.name,
        "path": disk.name,
        "state": state(disk),
        "uuid": disk.id,
        "local": true,
        "pool_index": 0,
        "set_index": 0,
        "disk_index": index,
    });
    if let Some(extents) = &disk.extents {
        let used = extents.open_commit + extents.open_body + extents.sealed_commit + extents.sealed_body;
        let free = extents.free + extents.growable;
        for (field, extents) in [("totalspace", used + free), ("usedspace", used), ("availspace", free)] {
            drive[field] = json!(extents * disk.extent_bytes);
        }
    }
    drive
}
