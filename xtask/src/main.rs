//! The developer's commands: `cargo xtask COMMAND`. Each prints the plain commands that it runs.
#![forbid(unsafe_code)]

mod aarch64;
mod arrows;
mod command;
mod parts;
mod python;
mod stress;
mod tests;
mod tidy;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use command::{cargo, cargo_with};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "The developer's commands"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all tests; those that need a missing part are skipped by name
    Test {
        /// Fail if a part is missing, instead of skipping the tests that need it
        #[arg(long)]
        require_all: bool,
        /// Only tests whose name contains this
        filter: Option<String>,
    },
    /// Run the tests that `test` leaves out because they take long, or need up to 10 GiB of memory,
    /// and those of the Python package with a wheel; then `stress`, with its options
    Nightly(stress::Options),
    /// Run all checks of a change: fmt, clippy, tidy, doc, test
    Ci {
        /// As for `test`
        #[arg(long)]
        require_all: bool,
    },
    /// Make a wheel of the Python package for release, and print its path
    Wheel,
    /// A part of `test`: the engines of moved code on aarch64, in an emulator, and a comparison of
    /// the answers of both processors
    Aarch64,
    /// Model-check rings and doorbells: all interleavings of small cases
    Loom {
        /// Only models whose name contains this
        filter: Option<String>,
    },
    /// Interpret the tests of `mem` and look for undefined behaviour
    Miri {
        /// Only tests whose name contains this
        filter: Option<String>,
    },
    /// Run a bench of the release build
    Bench {
        /// Its name and options, as for `samite bench`
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run suites of many processes while random ones are stopped for up to a second each, and
    /// again beside eight that spin
    Stress(stress::Options),
    /// Check the source against the house rules
    Tidy,
    /// A part of `stress`: become another program
    #[command(name = stress::START, hide = true)]
    StressStart {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        line: Vec<std::ffi::OsString>,
    },
    /// A part of `stress`: keep a core busy
    #[command(name = stress::SPIN, hide = true)]
    StressSpin,
}

fn main() -> ExitCode {
    let command = match Cli::parse().command {
        Command::StressStart { line } => return stress::start(&line),
        command => command,
    };
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Test {
            require_all,
            filter,
        } => tests::test(require_all, filter.as_deref()),
        Command::Nightly(options) => {
            tests::ignored()?;
            python::test_wheel()?;
            stress::stress(&options)
        }
        Command::Ci { require_all } => ci(require_all),
        Command::Wheel => python::wheel(),
        Command::Aarch64 => aarch64::aarch64(),
        Command::Loom { filter } => tests::loom(filter.as_deref()),
        Command::Miri { filter } => miri(filter.as_deref()),
        Command::Bench { arguments } => {
            let mut line = vec!["run", "--release", "--package", "samite-cli", "--", "bench"];
            line.extend(arguments.iter().map(String::as_str));
            cargo(&line)
        }
        Command::Tidy => tidy::tidy(),
        Command::Stress(options) => stress::stress(&options),
        Command::StressStart { line } => bail!("{line:?} is started by `stress`"),
        Command::StressSpin => stress::spin(),
    }
}

fn ci(require_all: bool) -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ])?;
    tidy::tidy()?;
    cargo_with(
        &[("RUSTDOCFLAGS", "-D warnings")],
        &["doc", "--workspace", "--no-deps"],
    )?;
    tests::test(require_all, None)
}

fn miri(filter: Option<&str>) -> Result<()> {
    if !command::succeeds("cargo", &["+nightly", "miri", "--version"]) {
        bail!("Miri is not installed: rustup toolchain install nightly --component miri");
    }
    let mut line = vec!["+nightly", "miri", "test", "--package", "samite-mem"];
    line.extend(filter);
    cargo(&line)
}
