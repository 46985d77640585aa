//! A body on the simulated network, once per seed.

use crate::Outcome;
use samite_fabric::transport::Rma;
use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Fabric, PeerId};
use std::ops::Range;

/// Each unit on its own node.
pub fn own_nodes(seed: u64, units: u32) -> Scenario {
    Scenario::new(seed, units)
}

/// Two nodes that access each other's memory without their owners' progress.
pub fn two_nodes(seed: u64, units: u32) -> Scenario {
    Scenario::new(seed, units)
        .on_nodes(2)
        .with_rma(Rma::Bypasses)
}

/// Three nodes whose RMA needs the progress of its target, and between which frames overtake each
/// other.
pub fn three_nodes(seed: u64, units: u32) -> Scenario {
    Scenario::new(seed, units)
        .on_nodes(3)
        .with_rma(Rma::NeedsProgress)
        .unordered()
}

/// Returns `otherwise`, or the seed in `SAMITE_SIM_SEED`.
pub fn seeds(otherwise: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("SAMITE_SIM_SEED") else {
        return otherwise;
    };
    match text.parse::<u64>() {
        Ok(seed) => seed..seed + 1,
        Err(_) => panic!("SAMITE_SIM_SEED is \"{text}\", which is not a number"),
    }
}

/// Runs `body` in `units` simulated units, each on its own node, for every seed, or for the one in
/// `SAMITE_SIM_SEED`. A failure prints the seed and the command that repeats it. `name` is the full
/// name of the test.
pub fn simulate(
    name: &str,
    units: u32,
    seeds: Range<u64>,
    body: impl Fn(&Fabric, &[PeerId]) -> Outcome + Sync,
) {
    simulate_on(units, name, units, seeds, body);
}

/// Does the same as [`simulate`], with the units on this many nodes: units of the same node map
/// each other's memory.
pub fn simulate_on(
    nodes: u32,
    name: &str,
    units: u32,
    seeds: Range<u64>,
    body: impl Fn(&Fabric, &[PeerId]) -> Outcome + Sync,
) {
    let scenario = |seed| Scenario::new(seed, units).on_nodes(nodes);
    simulate_as(scenario, name, seeds, body);
}

/// Does the same as [`simulate`], in the scenario of each seed.
pub fn simulate_as(
    scenario: impl Fn(u64) -> Scenario,
    name: &str,
    seeds: Range<u64>,
    body: impl Fn(&Fabric, &[PeerId]) -> Outcome + Sync,
) {
    for seed in self::seeds(seeds) {
        let scenario = scenario(seed);
        let ended = scenario.run(|fabric| {
            let members = fabric.job()?;
            body(fabric, &members)
        });
        let failures: Vec<String> = ended
            .into_iter()
            .enumerate()
            .filter_map(|(unit, end)| end.err().map(|why| format!("  unit {unit}: {why}")))
            .collect();
        let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
        assert!(
            failures.is_empty(),
            "seed {seed}:\n{}\nrepeat it with: SAMITE_SIM_SEED={seed} cargo test -p {package} -- --exact {name}",
            failures.join("\n"),
        );
    }
}
