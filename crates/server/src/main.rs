//! The `steadfast` binary.

fn main() -> std::process::ExitCode {
    steadfast_server::cli::main()
}
