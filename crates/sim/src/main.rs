//! `steadfast-sim`: the simulators as commands.

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use steadfast_sim::cli::SimulateArgs;
use steadfast_sim::{
    BlockOptions, BlockVariant, EdgeOptions, EdgeVariant, LeaseOptions, LeaseVariant, NodesOptions, NodesVariant,
    run_blocks, run_edges, run_leases, run_nodes,
};

/// A guarantee was broken.
const EXIT_FOUND: u8 = 3;

#[derive(Parser)]
#[command(
    name = "steadfast-sim",
    version,
    about = "Runs parts of Steadfast on simulated machines, seed after seed, and checks every guarantee.",
    after_help = "Exit codes: 0 passed; 1 failed (standard error has the reason); 2 wrong command line; 3 a guarantee was broken.\n\n\
Examples:\n  steadfast-sim pool --seed 1 --runs 2000\n  steadfast-sim nodes --runs 500 --variant keys-forgotten"
)]
struct Cli {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Subcommand)]
enum SimCommand {
    /// Simulate a pool: log and store, with power cuts and faulty disks.
    Pool(SimulateArgs),
    /// Simulate block devices.
    Block(SeedArgs),
    /// Simulate edge buckets over an origin that changes, fails and lies.
    Edge(SeedArgs),
    /// Simulate the nodes of a cluster.
    Nodes(SeedArgs),
    /// Simulate machines that take an archive over from each other by leases.
    Lease(SeedArgs),
}

#[derive(Args)]
struct SeedArgs {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Number of seeds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,

    /// Deliberate fault in the code, which the checks must detect
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,

    /// Run the variant's circumstances with the correct code
    #[arg(long, requires = "variant")]
    control: bool,

    /// Threads; 0: one for each core
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Number of events that are printed of a failing run
    #[arg(long, default_value_t = 150)]
    tail: usize,

    /// Print every event of the run; for one seed
    #[arg(long)]
    trace: bool,
}

impl SeedArgs {
    /// The deliberate fault, if any.
    fn variant<V>(&self, parse: impl Fn(&str) -> Option<V>) -> Result<Option<V>, String> {
        let Some(name) = &self.variant else { return Ok(None) };
        parse(name).map(Some).ok_or_else(|| format!("there is no variant {name:?}"))
    }
}

fn main() -> ExitCode {
    let passed = match Cli::parse().command {
        SimCommand::Pool(args) => pool(&args),
        SimCommand::Block(args) => block(&args),
        SimCommand::Edge(args) => edge(&args),
        SimCommand::Nodes(args) => nodes(&args),
        SimCommand::Lease(args) => leases(&args),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_FOUND),
        Err(why) => {
            eprintln!("steadfast-sim: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Simulates a pool. Returns whether all seeds passed, as the others do.
fn pool(args: &SimulateArgs) -> Result<bool, String> {
    let report = args.run();
    print!("{}", args.describe("steadfast-sim pool", &report).map_err(|error| error.to_string())?);
    Ok(report.passed())
}

fn block(args: &SeedArgs) -> Result<bool, String> {
    let options = BlockOptions {
        seed: args.seed,
        runs: args.runs,
        variant: args.variant(BlockVariant::parse)?,
        control: args.control,
        threads: args.threads,
        tail: args.tail,
        trace: args.trace,
    };
    let report = run_blocks(&options, &|_, _| ());
    for failure in &report.failures {
        print_failure(failure.seed, &failure.violation, &failure.tail);
    }
    println!(
        "{} runs, {} lives, {} cuts, {} events, digest {:016x}",
        report.runs, report.lives, report.cuts, report.events, report.digest
    );
    Ok(report.passed())
}

fn edge(args: &SeedArgs) -> Result<bool, String> {
    let options = EdgeOptions {
        seed: args.seed,
        runs: args.runs,
        variant: args.variant(EdgeVariant::parse)?,
        control: args.control,
        threads: args.threads,
        tail: args.tail,
        trace: args.trace,
    };
    let report = run_edges(&options, &|_, _| ());
    for failure in &report.failures {
        print_failure(failure.seed, &failure.violation, &failure.tail);
    }
    println!(
        "{} runs, {} lives, {} cuts, {} answers, {} events, digest {:016x}",
        report.runs, report.lives, report.cuts, report.answers, report.events, report.digest
    );
    Ok(report.passed())
}

fn nodes(args: &SeedArgs) -> Result<bool, String> {
    let options = NodesOptions {
        seed: args.seed,
        runs: args.runs,
        variant: args.variant(NodesVariant::parse)?,
        control: args.control,
        threads: args.threads,
        tail: args.tail,
        trace: args.trace,
    };
    let report = run_nodes(&options, &|_, _| ());
    for failure in &report.failures {
        print_failure(failure.seed, &failure.violation, &failure.tail);
    }
    println!(
        "{} runs, {} lives, {} deliveries, {} recoveries, {} resets, {} events, digest {:016x}",
        report.runs, report.lives, report.deliveries, report.recoveries, report.resets, report.events, report.digest
    );
    Ok(report.passed())
}

fn leases(args: &SeedArgs) -> Result<bool, String> {
    let options = LeaseOptions {
        seed: args.seed,
        runs: args.runs,
        variant: args.variant(LeaseVariant::parse)?,
        control: args.control,
        threads: args.threads,
        tail: args.tail,
        trace: args.trace,
    };
    let report = run_leases(&options, &|_, _| ());
    for failure in &report.failures {
        print_failure(failure.seed, &failure.violation, &failure.tail);
    }
    println!(
        "{} runs, {} answers, {} take-overs, {} events, digest {:016x}",
        report.runs, report.answers, report.take_overs, report.events, report.digest
    );
    Ok(report.passed())
}

/// Prints a failing seed after its last events.
fn print_failure(seed: u64, violation: &str, tail: &[String]) {
    for line in tail {
        println!("{line}");
    }
    println!("seed {seed}: {violation}");
}
