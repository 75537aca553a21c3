//! The results of commands on standard output. Its reader may close it, where `println!` panics.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};
use std::process::exit;

use super::EXIT_FAILED;

/// Prints a line.
macro_rules! print_line {
    ($($what:tt)*) => { $crate::cli::print::print(format_args!("{}\n", format_args!($($what)*))) };
}

/// Prints text as it is.
macro_rules! put {
    ($($what:tt)*) => { $crate::cli::print::print(format_args!($($what)*)) };
}

/// Prints. Exits if that fails: without a message if the reader has closed the pipe.
pub fn print(what: Arguments<'_>) {
    let mut out = stdout().lock();
    if let Err(error) = out.write_fmt(what).and_then(|()| out.flush()) {
        if error.kind() != ErrorKind::BrokenPipe {
            eprintln!("steadfast: standard output cannot be written: {error}");
        }
        exit(EXIT_FAILED.into());
    }
}
