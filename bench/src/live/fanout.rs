//! Measures the time from a publish to the last delivery.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use super::http::Publisher;
use super::swarm::{Happening, Swarm};
use super::wire::{self, Marks, bad};
use super::{LiveArgs, PATIENCE, Used, now, open_all, quantile};

enum Source {
    Api(Publisher),
    /// Of the floor program.
    Bare(TcpStream),
}

/// Runs the measurement; see the module.
///
/// # Errors
/// When a publication is missing or out of order.
pub fn run(args: &LiveArgs) -> io::Result<serde_json::Value> {
    let mut swarm = Swarm::new(args.options(), args.sessions)?;
    open_all(&mut swarm, args.window, &mut |_, _| {})?;
    let mut source = match args.bare {
        true => Source::Bare(TcpStream::connect(args.first())?),
        false => Source::Api(Publisher::connect(args.first(), &args.api_key, &args.channel)?),
    };
    let mut last_us = Vec::new();
    let mut used = Used::begin(args.pid);
    // The first publication warms up the server and does not count.
    for n in 0..=args.publications {
        if n == 1 {
            used = Used::begin(args.pid);
        }
        let data = wire::data(Marks { n, t: 0 }, args.size);
        let begin = now();
        match &mut source {
            Source::Api(publisher) => publisher.send(&data)?,
            Source::Bare(stream) => {
                let frame = wire::server_frame(args.encoding(), &args.channel, n + 1, &data)?;
                let mut bytes = (frame.len() as u32).to_be_bytes().to_vec();
                bytes.extend_from_slice(&frame);
                stream.write_all(&bytes)?;
            }
        }
        let (mut count, mut wrong) = (0, None);
        while count < args.sessions {
            swarm.poll(Duration::from_millis(100), &mut |number, happening| match happening {
                Happening::Got(got) if got.marks.n == n => count += 1,
                other => wrong = Some((number, other)),
            })?;
            if let Some((number, happening)) = wrong {
                return Err(bad(format!("session {number} while publication {n} was on its way: {happening:?}")));
            }
            if begin.elapsed() > PATIENCE {
                return Err(bad(format!("publication {n}: {count} of {} sessions have it", args.sessions)));
            }
        }
        let elapsed = begin.elapsed().as_micros() as u64;
        if let Source::Api(publisher) = &mut source {
            publisher.answer()?;
        }
        if n > 0 {
            last_us.push(elapsed);
        }
    }
    let deliveries = args.publications * args.sessions as u64;
    let (server_cpu_us, client_cpu_us) = used.each(deliveries);
    last_us.sort_unstable();
    Ok(json!({
        "sessions": args.sessions, "publications": args.publications, "size": args.size, "deliveries": deliveries,
        "last_delivery_p50_us": quantile(&last_us, 0.5), "last_delivery_max_us": last_us.last(),
        "server_cpu_us": server_cpu_us, "client_cpu_us": client_cpu_us,
    }))
}
