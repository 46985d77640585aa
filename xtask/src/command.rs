//! Runs commands and prints them, so that they can be repeated by hand.

use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Runs `cargo` and shows its output.
pub(crate) fn cargo(arguments: &[&str]) -> Result<()> {
    cargo_with(&[], arguments)
}

/// Runs `cargo` with additional environment variables.
pub(crate) fn cargo_with(environment: &[(&str, &str)], arguments: &[&str]) -> Result<()> {
    // The plain name, so that rustup's proxy resolves a toolchain such as `cargo +nightly`.
    run_with(environment, "cargo", arguments)
}

/// Runs a program with additional environment variables and shows its output.
pub(crate) fn run_with(
    environment: &[(&str, &str)],
    program: &str,
    arguments: &[&str],
) -> Result<()> {
    let mut line = String::from("+");
    for (name, value) in environment {
        line.push_str(&format!(" {name}={}", quoted(value)));
    }
    line.push_str(&format!(" {}", quoted(program)));
    for argument in arguments {
        line.push_str(&format!(" {}", quoted(argument)));
    }
    eprintln!("{line}");
    let status = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .status()
        .with_context(|| format!("{program} cannot be started"))?;
    if !status.success() {
        bail!("`{program} {}` failed", arguments.join(" "));
    }
    Ok(())
}

/// Returns true if a command can be run and succeeds. Its output is discarded.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns the output of a command.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{program} cannot be started"))?;
    if !output.status.success() {
        bail!("`{program} {}` failed", arguments.join(" "));
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} prints no text"))
}

fn quoted(word: &str) -> String {
    if word.contains(' ') {
        format!("'{word}'")
    } else {
        word.to_owned()
    }
}
