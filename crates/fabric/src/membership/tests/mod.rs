//! `world` (agents and an unreliable wire) · `rules` (what must hold) · `seen` (what one agent was
//! told, and whether it may be) · `seeds` (chance) · `exhaustive` (all that can happen to few) ·
//! `refused` (messages, one by one) · `hostile` (agents that lie) · `parts` (single rules)

mod exhaustive;
mod hostile;
mod parts;
mod refused;
mod rules;
mod seeds;
mod seen;
mod world;

use super::Config;

/// Short deadlines: few ticks pass until somebody is lost.
fn config() -> Config {
    Config {
        beat: 10,
        silence: 60,
        grace: 20,
        nodes: 16,
    }
}
