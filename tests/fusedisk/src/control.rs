//! The control socket: one JSON object a line, one answer a line.
//!
//! ```text
//! {"add": {"op": "fsync", "fault": "eio", "path": "pool", "times": 1}}     -> {"id": 1}
//! {"remove": 1}   {"clear": null}   {"bandwidth": 5000000}                 -> {"ok": true}
//! {"counts": null}                                                         -> {"writes": 12, ...}
//! {"volatile": true}   {"power_on": null}                                  -> {"ok": true}
//! {"cut": 42}                                                              -> {"kept": 3, "lost": 5}
//! ```

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::faults::{Faults, Rule};
use crate::volatile::Cache;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Command {
    /// Arm a rule.
    Add(Rule),
    /// Remove the rule with this id.
    Remove(u64),
    /// Remove all rules and the bandwidth.
    Clear(()),
    /// Limit reads and writes together, in bytes a second; 0 for no limit.
    Bandwidth(u64),
    /// Tell the counts.
    Counts(()),
    /// Keep writes in a cache that a power cut loses.
    Volatile(bool),
    /// Cut the power, with a seed for what survives.
    Cut(u64),
    /// Turn the power on.
    PowerOn(()),
}

/// Answers commands on `socket` for as long as the process lives.
///
/// # Errors
/// The socket cannot be made.
pub fn serve(socket: &Path, faults: Arc<Faults>, cache: Arc<Cache>) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (faults, cache) = (Arc::clone(&faults), Arc::clone(&cache));
            std::thread::spawn(move || converse(&stream, &faults, &cache));
        }
    });
    Ok(())
}

fn converse(stream: &UnixStream, faults: &Faults, cache: &Cache) -> io::Result<()> {
    let mut output = stream;
    for line in BufReader::new(stream).lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(command) => execute(command, faults, cache).unwrap_or_else(|error| json!({"error": error.to_string()})),
            Err(error) => json!({"error": error.to_string()}),
        };
        writeln!(output, "{answer}")?;
    }
    Ok(())
}

fn execute(command: Command, faults: &Faults, cache: &Cache) -> io::Result<Value> {
    match command {
        Command::Add(rule) => return Ok(json!({"id": faults.add(rule)})),
        Command::Counts(()) => return Ok(serde_json::to_value(faults.counts())?),
        Command::Cut(seed) => return Ok(serde_json::to_value(cache.cut(seed)?)?),
        Command::Remove(id) => faults.remove(id),
        Command::Clear(()) => faults.clear(),
        Command::Bandwidth(bytes) => faults.set_bandwidth(bytes),
        Command::Volatile(on) => cache.set(on)?,
        Command::PowerOn(()) => cache.power_on(),
    }
    Ok(json!({"ok": true}))
}
