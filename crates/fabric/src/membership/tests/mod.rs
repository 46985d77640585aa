//! `world` (agents and an unreliable network) · `rules` (what must hold) · `seen` (what one agent
//! was told, and whether that is allowed) · `seeds` (random runs) · `exhaustive` (all runs of a few
//! agents) · `refused` (single messages) · `hostile` (agents that lie) · `parts` (single rules)

mod exhaustive;
mod hostile;
mod parts;
mod refused;
mod rules;
mod seeds;
mod seen;
mod world;

use super::Config;

/// Short deadlines: a node is lost after a few ticks.
fn config() -> Config {
    Config {
        beat: 10,
        silence: 60,
        grace: 20,
        nodes: 16,
    }
}
