//! A liar on the simulated network.

use crate::program::{Own, honest};
use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Fabric, PeerId, testing};
use samite_testkit::fuzz::{self, Rng};
use samite_testkit::hostile::Liar;
use samite_testkit::{Failed, Outcome};
use std::time::Duration;

const HONEST: [PeerId; 2] = [PeerId::new(0, 0), PeerId::new(1, 0)];
const LIAR: PeerId = PeerId::new(2, 0);
const ROUNDS: u64 = 6;

fn scenario(seed: u64, random: &mut Rng) -> Scenario {
    let mut scenario = Scenario::new(seed, 3);
    scenario.config.deadline = Duration::from_millis(random.u64(1..100));
    scenario.config.eager_max = random.bool().then_some(random.u64(64..4096));
    scenario
}

/// The unit that lies takes part as if it did not know.
fn lie(fabric: &Fabric, seed: u64, rate: u32) -> Outcome {
    let own = Own::new(fabric, seed.is_multiple_of(2))?;
    let liar = Liar::new(seed, rate);
    testing::tamper(fabric, Box::new(liar.clone()));
    for round in 0..ROUNDS {
        let _ = own.round(&HONEST, round);
        for to in HONEST {
            for _ in 0..round {
                testing::send(fabric, to, &liar.lie());
            }
        }
    }
    Ok(())
}

fn be_honest(fabric: &Fabric, seed: u64) -> Outcome {
    let own = Own::new(fabric, seed.is_multiple_of(3))?;
    let other = HONEST[1 - fabric.me().node() as usize];
    // With the liar nothing is waited for as long as with each other.
    for round in 0..ROUNDS {
        let timeout = fabric.deadline();
        let with_liar = own.round(&[LIAR], round);
        drop(with_liar);
        fabric.set_deadline(Duration::from_secs(1000));
        honest(own.round(&[other], round), &HONEST)?;
        fabric.set_deadline(timeout);
    }
    fabric.set_deadline(Duration::from_secs(1000));
    Ok(fabric.barrier(&HONEST)?)
}

#[test]
fn a_liar_hurts_nobody() {
    let _alone = crate::alone();
    fuzz::rounds("frames::a_liar_hurts_nobody", 150, |seed, random| {
        let rate = *random.choice(&[5, 50, 300]).unwrap_or(&50);
        let ended = scenario(seed, random).run(|fabric| match fabric.me() {
            LIAR => lie(fabric, seed, rate),
            _ => be_honest(fabric, seed),
        });
        let ended = ended.into_iter().enumerate().take(2);
        let failed: Vec<String> = ended
            .filter_map(|(unit, end)| end.err().map(|Failed(why)| format!("unit {unit}: {why}")))
            .collect();
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    });
}
