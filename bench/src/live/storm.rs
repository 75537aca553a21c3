//! Sessions that connect all at once: first connections, and reconnects after a drop of all.

use std::io;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::http::Publisher;
use super::swarm::{Happening, Swarm};
use super::wire::{self, Marks, bad};
use super::{LiveArgs, Used, now, open_all};

/// Idle time before the memory of the server is read.
const SETTLE: Duration = Duration::from_secs(3);

/// Memory of a process, KiB: its private memory and its share of shared memory.
fn pss_kib(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find(|line| line.starts_with("Pss:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn settle(swarm: &mut Swarm) -> io::Result<()> {
    let begin = now();
    while begin.elapsed() < SETTLE {
        swarm.poll(Duration::from_millis(100), &mut |_, _| {})?;
    }
    Ok(())
}

/// Opens all sessions, first connected only, then with a subscription. The memory is that of the
/// latter.
///
/// # Errors
/// When not all sessions become ready.
pub fn connect(args: &LiveArgs) -> io::Result<serde_json::Value> {
    let before_kib = args.pid.and_then(pss_kib);
    let mut refused = 0u64;
    let mut open = |channel: &str| {
        let mut swarm = Swarm::new(super::Options { channel: channel.to_owned(), ..args.options() }, args.sessions)?;
        let (begin, used) = (now(), Used::begin(args.pid));
        open_all(&mut swarm, args.window, &mut |_, happening| {
            refused += u64::from(matches!(happening, Happening::Closed(_)));
        })?;
        let rate = args.sessions as f64 / begin.elapsed().as_secs_f64();
        Ok::<_, io::Error>((swarm, rate, used.each(args.sessions as u64)))
    };
    let (connected, connects_per_s, connect_cpu) = open("")?;
    drop(connected);
    settle(&mut Swarm::new(args.options(), 0)?)?;
    let (mut swarm, subscribes_per_s, subscribe_cpu) = open(&args.channel)?;
    settle(&mut swarm)?;
    let after_kib = args.pid.and_then(pss_kib);
    let idle_kib = before_kib.zip(after_kib).map(|(before, after)| (after - before) / args.sessions as f64);
    Ok(json!({
        "sessions": args.sessions, "window": args.window, "refused": refused, "idle_session_kib": idle_kib,
        "connects_per_s": connects_per_s, "connect_server_cpu_us": connect_cpu.0, "connect_client_cpu_us": connect_cpu.1,
        "connects_with_subscribe_per_s": subscribes_per_s,
        "subscribe_server_cpu_us": subscribe_cpu.0, "subscribe_client_cpu_us": subscribe_cpu.1,
    }))
}

/// Runs a shell command. Returns how long it took.
fn run_command(command: &str) -> io::Result<Duration> {
    let begin = now();
    let status = Command::new("sh").args(["-c", command]).status()?;
    if status.success() {
        Ok(begin.elapsed())
    } else {
        Err(bad(format!("the command {command:?} ended with {status}")))
    }
}

/// Drops all sessions, publishes, reconnects all at once and lets them recover.
///
/// # Errors
/// When a session misses a publication, or gets them out of order.
pub fn run(args: &LiveArgs) -> io::Result<serde_json::Value> {
    let mut swarm = Swarm::new(args.options(), args.sessions)?;
    open_all(&mut swarm, args.window, &mut |_, _| {})?;
    let mut publisher = Publisher::connect(args.first(), &args.api_key, &args.channel)?;
    let mut next = vec![0u64; args.sessions];
    let mut wrong = 0u64;
    let mut follow = |number: usize, happening: Happening| {
        if let Happening::Got(got) = happening {
            wrong += u64::from(got.marks.n != next[number]);
            next[number] = got.marks.n + 1;
        }
        next[number]
    };
    // All sessions get this one, as the position to recover from.
    publisher.send(&wire::data(Marks { n: 0, t: 0 }, args.size))?;
    publisher.answer()?;
    let mut have = 0;
    while have < args.sessions {
        swarm.poll(Duration::from_millis(100), &mut |number, happening| {
            follow(number, happening);
            have += 1;
        })?;
    }
    for number in 0..args.sessions {
        swarm.drop_connection(number);
    }
    for n in 1..=args.publications {
        publisher.send(&wire::data(Marks { n, t: 0 }, args.size))?;
        publisher.answer()?;
    }
    // Wait until the server has seen the last disconnect.
    settle(&mut swarm)?;
    let between = args.between.as_deref().map(run_command).transpose()?;
    let (begin, used) = (now(), Used::begin(args.pid));
    let (mut recovered, mut not_recovered, mut refused) = (0u64, 0u64, 0u64);
    open_all(&mut swarm, args.window, &mut |number, happening| {
        follow(number, happening);
        match happening {
            Happening::Ready(Some(true)) => recovered += 1,
            Happening::Ready(_) => not_recovered += 1,
            Happening::Closed(_) => refused += 1,
            Happening::Got(_) => {}
        }
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    let (server_cpu_us, client_cpu_us) = used.each(args.sessions as u64);
    let behind = next.iter().filter(|next| **next != args.publications + 1).count();
    if wrong > 0 || behind > 0 || not_recovered > 0 {
        return Err(bad(format!(
            "of {} sessions {behind} miss something, {not_recovered} could not recover, {wrong} publications came out of order",
            args.sessions
        )));
    }
    Ok(json!({
        "sessions": args.sessions, "window": args.window, "missed_publications": args.publications, "recovered": recovered,
        "refused": refused, "seconds": seconds, "recoveries_per_s": args.sessions as f64 / seconds,
        "server_cpu_us": server_cpu_us, "client_cpu_us": client_cpu_us,
        "between_s": between.map(|between| between.as_secs_f64()),
    }))
}
