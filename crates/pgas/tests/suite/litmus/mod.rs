//! The memory model, clause by clause: small programs whose forbidden outcomes must not show, on
//! memory that is shared, over messages, on a simulated network, and in the checking mode.
//! `docs/memory-model.md` names the test of each clause.
//!
//! Each round uses elements of its own, so that nothing has to be set back, and begins at a
//! barrier, so that the units meet.
//!
//! # Files
//! `passing` (messages through memory) · `operations` · `atomics` · `signals` · `order` (barriers,
//! collectives, locks, phases) · `progress` · `races`

mod atomics;
mod operations;
mod order;
mod passing;
mod progress;
mod races;
mod signals;

use samite_fabric::Fabric;
use samite_pgas::{Result, Segment};
use samite_testkit::maps_all;

/// A test on all transports, and once more in the checking mode, which must find nothing.
macro_rules! litmus {
    ($name:ident, $units:expr, $body:expr) => {
        mod $name {
            use super::*;

            samite_testkit::everywhere!(transport, $units, $body);

            #[test]
            fn checked() {
                let name = samite_testkit::full_name(module_path!(), "checked");
                let checked = samite_testkit::units($units).config(|config| config.check = true);
                checked.run(&name, $body);
            }
        }
    };
}

pub(crate) use litmus;

/// As many rounds as take no time worth speaking of.
pub(crate) fn rounds(fabric: &Fabric) -> u64 {
    match (maps_all(fabric), fabric.domain()) {
        _ if fabric.checks() => 8,
        (true, _) => 500,
        (false, Some(_)) => 100,
        // Simulated.
        (false, None) => 20,
    }
}

/// Waits for a value by looking, as a program does that has nothing else to do.
pub(crate) fn look_for(segment: &Segment<u64>, rank: u32, index: u64, value: u64) -> Result<()> {
    while segment.load(rank, index)? != value {
        segment.team().fabric().progress();
    }
    Ok(())
}
