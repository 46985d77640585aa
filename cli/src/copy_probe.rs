//! Tests whether the kernel copies between two processes, as it would between units: a child tries
//! to read a word of this process.
//!
//! A process may always read itself, and nearly always its own children. So neither test would tell
//! anything about units, which are siblings.

use samite::Ptracer;
use samite::config::PtracerName;
use std::process::Command;

/// Runs in the child: reads eight bytes of another process and prints them as a number.
pub(crate) fn read(pid: i32, address: u64) -> anyhow::Result<()> {
    let mut word = [0; 8];
    samite_mem::copy::kernel::read_exact(pid, address, &mut word)?;
    crate::screen::say(format_args!("{}\n", u64::from_le_bytes(word)))
}

/// Lets a child read a word of this process. This process allows readers as a unit with this
/// setting does, and plays the part of the launcher.
pub(crate) fn try_with(ptracer: PtracerName) -> Result<(), String> {
    let own = std::process::id();
    let policy = match ptracer {
        PtracerName::Launcher => Ptracer::Process(own as i32),
        PtracerName::Any => Ptracer::Any,
        PtracerName::Unchanged => Ptracer::Unchanged,
    };
    policy.allow();
    // A value that occurs nowhere else.
    let word = Box::new(0x5a31_7e5a_0000_0000 ^ u64::from(own));
    let address = std::ptr::from_ref(&*word) as u64;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let child = Command::new(program)
        .args(["copy-probe", &own.to_string(), &address.to_string()])
        .output()
        .map_err(|error| format!("another process could not be started: {error}"))?;
    if !child.status.success() {
        let why = String::from_utf8_lossy(&child.stderr);
        return Err(format!(
            "process_vm_readv by another process: {}",
            why.trim()
        ));
    }
    match String::from_utf8_lossy(&child.stdout).trim() == word.to_string() {
        true => Ok(()),
        false => Err("another process read something else".to_owned()),
    }
}
