//! `cargo run -p steadfast-sim --example nodes -- SEED RUNS [VARIANT|-] [trace|control]`

use steadfast_sim::{NodesOptions, NodesVariant, run_nodes};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let options = NodesOptions {
        seed: number(0, 1),
        runs: number(1, 100),
        variant: args.get(2).and_then(|name| NodesVariant::parse(name)),
        trace: args.get(3).is_some_and(|arg| arg == "trace"),
        control: args.get(3).is_some_and(|arg| arg == "control"),
        tail: if args.len() > 4 { 100_000 } else { 600 },
        ..NodesOptions::default()
    };
    let report = run_nodes(&options, &|_, _| ());
    for failure in &report.failures {
        for line in &failure.tail {
            println!("{line}");
        }
        println!("seed {}: {}", failure.seed, failure.violation);
    }
    println!(
        "{} runs, {} lives, {} deliveries, {} recoveries, {} resets, {} events, digest {:016x}",
        report.runs, report.lives, report.deliveries, report.recoveries, report.resets, report.events, report.digest
    );
    if !report.passed() {
        std::process::exit(1);
    }
}
