//! The first call of code between two processes that were started for it: a job of the command
//! `samite`, whose units are the program `bench-first`.

use super::mobile::ADD;
use super::native::{self, Form};
use super::staging::workflow::{TOLD, on_all_processors};
use anyhow::{Context, Result, bail, ensure};
use samite::mobile::{Capsule, Limits, Mobile, Rights};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What the unit that calls says before its figure.
const TOOK: &str = "first call: ";

/// Returns the seconds of the first call of code in this form.
pub(super) fn first_call(form: &str) -> Result<f64> {
    let this = std::env::current_exe()?;
    let mut command = Command::new(&this);
    command
        .args(["run", "-n", "2", "--tag-output", "no"])
        .arg(&this)
        .args(["bench-first", form]);
    for name in TOLD {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    let child = on_all_processors(|| Ok(command.spawn()?))?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "two processes for a call: {errors}"
    );
    let took = said.lines().find_map(|line| line.strip_prefix(TOOK));
    let took = took.with_context(|| format!("no figure: {said}{errors}"))?;
    Ok(took.trim().parse()?)
}

/// One of the two units: the program `bench-first`.
pub fn run_first(form: &str) -> Result<()> {
    let fabric = samite::init()?;
    let members = fabric.job()?;
    let unit = fabric.identity().unit;
    crate::control::pin(unit)?;
    let mobile = Mobile::new(&fabric)?;
    if form == "bitcode" {
        mobile.set_policy(native::policy());
    }
    let count = fabric.allocate(2 << 20)?; // mapped into the memory of kernels
    mobile.grant(0, count.bytes(), Rights::Write);
    let code = match (unit, form) {
        (0, "wasm") => Some(Capsule::from_wat(ADD)?),
        (0, "bitcode") => Some(native::capsule(
            Form::Bitcode,
            native::ADD,
            &super::mobile::macros(1),
        )?),
        (0, other) => bail!("there is no form `{other}`"),
        _ => None,
    };
    fabric.barrier(&members)?;
    if let Some(code) = code {
        let code = mobile.register(code)?;
        let limits = Limits::default();
        let begin = Instant::now();
        mobile.call_entry(1, &code, 0, &[], limits)?.wait()?;
        println!("{TOOK}{}", begin.elapsed().as_secs_f64());
    }
    fabric.barrier(&members)?;
    if unit == 1 {
        let mut added = [0; 8];
        count.bytes().read(0, &mut added);
        ensure!(added == 1_u64.to_le_bytes(), "the call has added nothing");
    }
    Ok(())
}
