//! `cargo run -p steadfast-sim --example simulate -- SEED RUNS [VARIANT|-] [trace|-] [zoned]`

use steadfast_sim::{SimOptions, Variant, run};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let options = SimOptions {
        seed: number(0, 1),
        runs: number(1, 100),
        variant: args.get(2).and_then(|name| Variant::parse(name)),
        trace: args.get(3).is_some_and(|arg| arg == "trace"),
        zoned: args.get(4).is_some_and(|arg| arg == "zoned"),
        tail: 150,
        ..SimOptions::default()
    };
    let report = run(&options, &|_, _| ());
    for failure in &report.failures {
        for line in &failure.tail {
            println!("{line}");
        }
        println!("seed {} ({:?}): {}", failure.seed, failure.fault_class, failure.violation.as_deref().unwrap_or(""));
    }
    println!(
        "{} runs, {} lives, {} cuts, {} events, {:?} {:?}",
        report.runs, report.lives, report.cuts, report.events, report.requests, report.faults
    );
    if !report.passed() {
        std::process::exit(1);
    }
}
