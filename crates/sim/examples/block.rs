//! `cargo run -p steadfast-sim --example block -- SEED RUNS [VARIANT|-] [trace|control]`

use steadfast_sim::{BlockOptions, BlockVariant, run_blocks};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let options = BlockOptions {
        seed: number(0, 1),
        runs: number(1, 100),
        variant: args.get(2).and_then(|name| BlockVariant::parse(name)),
        trace: args.get(3).is_some_and(|arg| arg == "trace"),
        control: args.get(3).is_some_and(|arg| arg == "control"),
        tail: 150,
        ..BlockOptions::default()
    };
    let report = run_blocks(&options, &|_, _| ());
    for failure in &report.failures {
        for line in &failure.tail {
            println!("{line}");
        }
        println!("seed {}: {}", failure.seed, failure.violation);
    }
    println!(
        "{} runs, {} lives, {} cuts, {} events, digest {:016x}",
        report.runs, report.lives, report.cuts, report.events, report.digest
    );
    if !report.passed() {
        std::process::exit(1);
    }
}
