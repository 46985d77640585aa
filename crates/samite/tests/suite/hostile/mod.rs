//! A hostile peer in a domain in which everything is used: honest units exchange messages,
//! allocate, lock, run collectives and hand each other steps, through the agent as `samite agent`
//! runs it, while strangers join and leave again, say what nobody says, and write where nobody
//! writes.
//!
//! `SAMITE_FUZZ_SEED=N` repeats a seed; `SAMITE_FUZZ_MINUTES=N` runs others for so long.
//!
//! # Files
//! `honest` (what the honest units do, and check) · `stranger` (lives of a hostile one)

mod honest;
mod stranger;

use samite::agent::Starter;
use samite::stage::service::{self, Capacity};
use samite::{Fabric, Identity};
use samite_testkit::hostile::Reach;
use samite_testkit::{Cluster, Outcome, Unit, fuzz, units};
use std::time::Duration;

/// Processes of a test beside the agent: eight with it.
const HONEST: u32 = 4;
const STRANGERS: u32 = 3;
const READER: u32 = HONEST - 1;

/// Name of the program that a stranger is when it has done all that it wanted to do.
const FINISHED: &str = "finished";

/// As `samite agent` has it, with less disk.
const SERVICES: Starter = Starter {
    start: |fabric, agent| {
        let room = Capacity {
            disk: 8 << 20,
            ..Capacity::of_agent(agent.budget)
        };
        service::Staging::new(fabric, room).into_services()
    },
    ..service::STARTER
};

/// The honest units are one job of two programs: all but the last one write streams, that one reads
/// them.
fn honest_identity(unit: &Unit) -> Identity {
    let is_reader = unit.rank == READER;
    Identity {
        program: if is_reader { "reader" } else { "writer" }.into(),
        rank: if is_reader { 0 } else { unit.rank },
        size: if is_reader { 1 } else { HONEST - 1 },
        units: HONEST,
        ..unit.identity()
    }
}

/// Runs a domain: honest units and strangers.
fn domain(
    name: &str,
    seed: u64,
    honest: impl Fn(&Fabric, u64) -> Outcome,
    lives: u64,
    reach: Option<Reach>,
) {
    let part = |unit: &Unit| {
        if unit.rank < HONEST {
            let fabric = Fabric::join(&unit.domain, honest_identity(unit), unit.config.clone())?;
            return honest(&fabric, seed);
        }
        samite_testkit::pause("stranger");
        stranger::live(unit, seed, lives, reach)
    };
    let orchestrator = |cluster: &mut Cluster| {
        for rank in 0..HONEST {
            cluster.wait_point(samite_testkit::Who::Unit(rank), "started");
        }
        for rank in HONEST..HONEST + STRANGERS {
            cluster.release(samite_testkit::Who::Unit(rank));
        }
    };
    let processes = units(HONEST + STRANGERS)
        .seed(seed)
        .services(vec![SERVICES]);
    processes
        .timeout(Duration::from_secs(120))
        .orchestrate_bare(name, part, orchestrator);
}

/// Frames, requests to the agent, messages to the coordinator: nothing of it makes honest units
/// fail each other.
#[test]
fn what_strangers_say() {
    let name = "hostile::what_strangers_say";
    fuzz::rounds(name, 1, |seed, _| {
        domain(name, seed, honest::until_finished, 6, None)
    });
}

/// The same, and they write into their own tables and rings.
#[test]
fn what_strangers_write_into_their_own_tables() {
    let name = "hostile::what_strangers_write_into_their_own_tables";
    fuzz::rounds(name, 1, |seed, _| {
        domain(name, seed, honest::until_finished, 6, Some(Reach::Own));
    });
}

/// They write into all tables: whatever the others get, they end in order.
#[test]
fn what_strangers_write_into_all_tables() {
    let name = "hostile::what_strangers_write_into_all_tables";
    fuzz::rounds(name, 4, |seed, _| {
        domain(name, seed, honest::some_rounds, 4, Some(Reach::All))
    });
}
