//! One session of many stops reading: its effect on the others, and its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use super::http::Publisher;
use super::swarm::{Happening, Swarm};
use super::wire::{self, Marks, bad};
use super::{LiveArgs, PATIENCE, Used, now, open_all, quantile};

/// Receive buffer of the session that does not read, bytes: small, so that the server detects it
/// soon.
const SLOW_WINDOW_BYTES: usize = 64 << 10;

/// Time limit for the disconnect of that session to arrive behind the data in flight.
const END_WAIT: Duration = Duration::from_secs(60);

/// Publications that a session that reads may be behind. Without this bound, a machine too slow for
/// `--rate` would have sessions ended as slow although they read.
const BEHIND_MAX: u64 = 16;

/// Resident memory of a process, MiB: now, and the peak.
fn memory_mib(pid: u32) -> Option<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
    };
    Some((field("VmRSS")?, field("VmHWM")?))
}

/// The same, and resets the peak if the kernel allows it: an earlier peak would hide the cost of
/// the slow session.
fn memory_from_now(pid: u32) -> Option<(f64, f64)> {
    let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
    memory_mib(pid)
}

/// Latencies of the other sessions in a part of the run.
fn part(latencies: &mut [u64]) -> serde_json::Value {
    latencies.sort_unstable();
    json!({
        "deliveries": latencies.len(), "p50_us": quantile(latencies, 0.5), "p99_us": quantile(latencies, 0.99),
        "max_us": latencies.last(),
    })
}

/// Publishes for `--seconds` while all sessions read, and again while one does not.
///
/// # Errors
/// When another session misses a publication, or the one that does not read is not disconnected.
pub fn run(args: &LiveArgs) -> io::Result<serde_json::Value> {
    let mut swarm = Swarm::new(args.options(), args.sessions)?;
    open_all(&mut swarm, args.window, &mut |_, _| {})?;
    // Reopen the last session with a small receive buffer.
    let slow = args.sessions - 1;
    swarm.drop_connection(slow);
    swarm.open(slow, Some(SLOW_WINDOW_BYTES))?;
    let mut ready = false;
    while !ready {
        swarm.poll(Duration::from_millis(100), &mut |number, happening| {
            ready |= number == slow && matches!(happening, Happening::Ready(_));
        })?;
    }
    let base = now();
    let patience = PATIENCE + Duration::from_secs_f64(2.0 * args.seconds);
    let per_part = (args.seconds * args.rate) as u64;
    let every = Duration::from_secs_f64(1.0 / args.rate);
    let (size, mut publisher) = (args.size, Publisher::connect(args.first(), &args.api_key, &args.channel)?);
    // What every session that reads has received.
    let received = Arc::new(AtomicU64::new(0));
    let received_by_all = Arc::clone(&received);
    // On a separate thread, so that a delivery never waits for a publication.
    let publishing = std::thread::spawn(move || {
        for n in 0..2 * per_part {
            let due = every * n as u32;
            #[allow(clippy::disallowed_methods, reason = "a thread of its own, which keeps a beat")]
            std::thread::sleep(due.saturating_sub(base.elapsed()));
            while n >= received_by_all.load(Ordering::Relaxed) + BEHIND_MAX {
                if base.elapsed() > patience {
                    return Err(bad("sessions that read are behind"));
                }
                #[allow(clippy::disallowed_methods, reason = "a thread of its own")]
                std::thread::sleep(Duration::from_millis(1));
            }
            publisher.send(&wire::data(Marks { n, t: base.elapsed().as_nanos() as u64 }, size))?;
            publisher.answer()?;
        }
        Ok::<(), io::Error>(())
    });
    let used = Used::begin(args.pid);
    let memory = || args.pid.and_then(memory_mib);
    let (mut reading, mut not_reading) = (Vec::new(), Vec::new());
    let mut next = vec![0u64; args.sessions];
    let (mut stalled, mut before) = (false, None);
    let (mut behind, mut wrong) = (args.sessions - 1, None);
    while behind > 0 {
        swarm.poll(Duration::from_millis(20), &mut |number, happening| match happening {
            Happening::Got(got) => {
                if got.marks.n != next[number] {
                    wrong = Some((number, happening));
                }
                next[number] = got.marks.n + 1;
                behind -= usize::from(number != slow && next[number] == 2 * per_part);
                if number != slow {
                    let latency = (base.elapsed().as_nanos() as u64).saturating_sub(got.marks.t) / 1000;
                    if got.marks.n < per_part { reading.push(latency) } else { not_reading.push(latency) }
                }
            }
            _ => wrong = Some((number, happening)),
        })?;
        if let Some((number, happening)) = wrong {
            return Err(bad(format!("session {number} at {}: {happening:?}", next[number])));
        }
        let readers = if stalled { slow } else { args.sessions };
        received.store(next[..readers].iter().copied().min().unwrap_or(0), Ordering::Relaxed);
        // One poll may return several publications.
        if !stalled && next[slow] >= per_part {
            stalled = true;
            before = args.pid.and_then(memory_from_now);
            swarm.stall(slow);
        }
        if base.elapsed() > patience {
            return Err(bad(format!("{behind} sessions are behind")));
        }
    }
    publishing.join().map_err(|_| bad("the publisher ended"))??;
    let (server_cpu_us, client_cpu_us) = used.each((reading.len() + not_reading.len()) as u64);
    let after = memory();
    // The data in flight arrives first, then the close reason.
    let (mut code, begin) = (None, now());
    let mut ended = |number: usize, happening: Happening| {
        if let (true, Happening::Closed(with)) = (number == slow, happening) {
            code = Some(with);
        }
    };
    swarm.resume(slow, &mut ended);
    while begin.elapsed() < END_WAIT && swarm.is_open(slow) {
        swarm.poll(Duration::from_millis(100), &mut ended)?;
    }
    let Some(code) = code else { return Err(bad("the session that does not read was not disconnected")) };
    Ok(json!({
        "sessions": args.sessions, "rate": args.rate, "size": args.size, "all_read": part(&mut reading),
        "one_does_not": part(&mut not_reading), "its_code": code, "its_publications": next[slow] - per_part,
        "memory_mib": after.map(|(now, _)| now), "memory_growth_mib": before.zip(after).map(|(b, a)| a.1 - b.0),
        "peak_mib": after.map(|(_, peak)| peak), "server_cpu_us": server_cpu_us, "client_cpu_us": client_cpu_us,
    }))
}
