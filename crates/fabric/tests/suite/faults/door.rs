//! The agent's door: whoever says nothing there, or does not hear an answer, keeps nobody out and
//! costs nothing.

use crate::faults::starting::Stranger;
use samite_fabric::{Fabric, PeerId, agent};
use samite_testkit::{Outcome, Who, check, pause, point, same, units};
use std::time::Duration;

/// Connections on which nothing is said, and processes that ask to join and never take their seat:
/// the agent goes on answering. One after another they would take longer than anybody waits here.
#[test]
fn the_silent_keep_nobody_out() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let domain = fabric.domain().unwrap_or_default();
        if fabric.me() == members[0] {
            let silent: Vec<Stranger> = (0..40)
                .map(|_| Stranger::connect(domain))
                .collect::<Outcome<_>>()?;
            let identity =
                r#"{"job":"ghosts","program":"ghost","rank":0,"size":1,"unit":0,"units":1}"#;
            let join = format!(
                r#"{{"Join":{{"identity":{identity},"cpus":{:?}}}}}"#,
                [0; 16]
            );
            let mut waiting = Vec::new();
            for _ in 0..20 {
                let ghost = Stranger::connect(domain)?;
                ghost.say(&join)?;
                let answer = ghost.hear()?;
                check!(
                    answer.contains("Joined") || answer.contains("Again"),
                    "{answer}"
                );
                waiting.push(ghost);
            }
            let facts = agent::facts(domain, Duration::from_secs(3))?;
            same!(facts.peers.len(), 2);
            let segment = fabric.allocate(8 << 20)?;
            same!(segment.bytes().len(), 8 << 20);
            drop((silent, waiting));
        }
        Ok(fabric.barrier(members)?)
    };
    units(2).run("faults::door::the_silent_keep_nobody_out", body);
}

/// What is not what a process can be is turned away.
#[test]
fn nobody_is_a_unit_that_there_is_not() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let domain = fabric.domain().unwrap_or_default();
        for numbers in [(0, 1, 7, 7), (3, 3, 0, 3), (0, 1, 0, u32::MAX)] {
            let (rank, size, unit, units) = numbers;
            let identity = format!(
                r#"{{"job":"odd","program":"odd","rank":{rank},"size":{size},"unit":{unit},"units":{units}}}"#
            );
            let cpus = [0; 16];
            let join = format!(r#"{{"Join":{{"identity":{identity},"cpus":{cpus:?}}}}}"#);
            let answer = Stranger::ask(domain, &join)?;
            check!(answer.contains("Refused"), "{numbers:?}: {answer}");
        }
        // Nor does a unit tell of the ends of its fellows: it did not start them.
        let ended = format!(
            r#"{{"Ended":{{"job":"{domain}","unit":0,"name":"unit.0","how":"was lied about"}}}}"#
        );
        let answer = Stranger::ask(domain, &ended)?;
        check!(answer.contains("Refused"), "{answer}");
        Ok(fabric.barrier(members)?)
    };
    units(2).run("faults::door::nobody_is_a_unit_that_there_is_not", body);
}

/// An extent whose asker did not wait for the answer is free again.
#[test]
fn an_extent_that_nobody_hears_of_is_free() {
    const NAME: &str = "faults::door::an_extent_that_nobody_hears_of_is_free";
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let domain = fabric.domain().unwrap_or_default();
        let used = || agent::facts(domain, Duration::from_secs(30)).map(|facts| facts.used);
        let before = used()?;
        pause("the agent is stopped");
        let (me, incarnation) = (fabric.me().0, fabric.incarnation());
        for _ in 0..8 {
            let asker = Stranger::connect(domain)?;
            let about = format!(r#""peer":{me},"incarnation":{incarnation}"#);
            asker.say(&format!(r#"{{"Extent":{{{about},"bytes":4194304}}}}"#))?;
        }
        point("asked");
        pause("the agent goes on");
        same!(used()?, before);
        Ok(fabric.barrier(members)?)
    };
    units(1).orchestrate(NAME, body, |cluster| {
        cluster.wait_point(Who::Unit(0), "the agent is stopped");
        cluster.stop(Who::Agent);
        cluster.release(Who::Unit(0));
        cluster.wait_point(Who::Unit(0), "asked");
        cluster.go_on(Who::Agent);
        cluster.wait_point(Who::Unit(0), "the agent goes on");
        cluster.release(Who::Unit(0));
    });
}
