//! Staging servers are killed at any point of what they do; with two replicas nothing is lost.
//!
//! A round is a stream of its own, over the three servers that are there when it begins. One of
//! them is killed while its steps are written and read, at random; before the next round another
//! one has come.

use crate::faults::{life_of, random, write_in_life};
use crate::staged::{Play, next, stage};
use samite_fabric::{Fabric, Mask};
use samite_stage::service::{BlockStoreService, Capacity};
use samite_stage::{Method, Settings};
use samite_testkit::{Cluster, MESSAGES_ONLY, Outcome, Unit, check, full_name, pause, point, same};
use std::time::Duration;

/// Servers that are killed.
const ROUNDS: u32 = 34;
/// Servers at a time.
pub(crate) const SERVERS: u32 = 3;
pub(crate) const STEPS: u64 = 8;
/// Half a megabyte: eight pieces, each at two servers.
pub(crate) const SHAPE: [u64; 2] = [256, 256];

/// The actors before them are servers.
const WRITER: u32 = SERVERS + ROUNDS;
const READER: u32 = WRITER + 1;

pub(crate) fn settings() -> Settings {
    Settings {
        replicas: 2,
        ..Settings::of(Method::Server)
    }
}

/// The servers, each until it is killed or the others have left; the writer and the reader.
fn part(unit: &Unit, me: u32) -> Outcome {
    if me >= WRITER {
        return rounds(&unit.join()?, me);
    }
    pause("born");
    serve(unit, me % SERVERS)
}

/// A staging server, until the others have left.
pub(crate) fn serve(unit: &Unit, rank: u32) -> Outcome {
    let mut identity = unit.identity();
    identity.program = "servers".into();
    (identity.rank, identity.size) = (rank, SERVERS);
    let fabric = Fabric::join(&unit.domain, identity, unit.config.clone())?;
    let mut service = BlockStoreService::join(&fabric, Capacity::of_memory(16 << 20))?;
    let others_are_there = |fabric: &Fabric| {
        let peers = fabric.peers();
        let mut others = peers.iter().map(|info| &info.identity.program);
        others.any(|program| program == "unit")
    };
    // On a busy machine the first of the others comes late; and before this server looks again they
    // may have left.
    let mut seen = others_are_there(&fabric);
    point("serving");
    Ok(service.run(|fabric| {
        let is_there = others_are_there(fabric);
        seen |= is_there;
        is_there || !seen
    })?)
}

fn rounds(fabric: &Fabric, me: u32) -> Outcome {
    let stage = stage(fabric, settings())?;
    for round in 0..ROUNDS {
        pause("round");
        let name = format!("field-{round}");
        if me == WRITER {
            let mut field = stage.write(&name).as_rank("solver", 0, 1).open()?;
            point("open");
            for number in 0..STEPS {
                // Of each round another one: bytes of an earlier round are seen.
                same!(write_in_life(&mut field, u64::from(round), SHAPE)?, number);
            }
            field.close()?;
            continue;
        }
        let mut reader = stage.read(&name).as_rank("analysis", 0, 1).open()?;
        point("open");
        for number in 0..STEPS {
            let step = next(&mut reader)?;
            same!(step.number(), number);
            same!(life_of(&step, SHAPE)?, u64::from(round));
        }
        check!(reader.next_step()?.is_none());
    }
    pause("done");
    Ok(())
}

fn kill_one_each_round(cluster: &mut Cluster, play: &Play) {
    let mut random = random();
    let server = |life: u32| play.actor(life);
    let both = [play.actor(WRITER), play.actor(READER)];
    let begin = |cluster: &mut Cluster, life: u32| {
        cluster.wait_point(server(life), "born");
        cluster.release(server(life));
        cluster.wait_point(server(life), "serving");
    };
    for life in 0..SERVERS {
        begin(cluster, life);
    }
    for round in 0..ROUNDS {
        for who in both {
            cluster.wait_point(who, "round");
            cluster.release(who);
        }
        for who in both {
            cluster.wait_point(who, "open");
        }
        // The delay is the test: the server dies at any point of what it does.
        std::thread::sleep(Duration::from_micros(random.u64(0..6000)));
        // The oldest: the next life has its rank.
        cluster.kill(server(round));
        cluster.wait_gone(server(round));
        begin(cluster, round + SERVERS);
    }
    for who in both {
        cluster.wait_point(who, "done");
        cluster.release(who);
    }
}

fn servers_are_killed(name: &str, mask: Mask) {
    let play = Play::of(2 + SERVERS + ROUNDS, mask);
    let units = play.units().timeout(Duration::from_secs(400));
    play.run_units(units, name, part, |cluster| {
        kill_one_each_round(cluster, &play)
    });
}

#[test]
fn servers_are_killed_again_and_again() {
    let name = full_name(module_path!(), "servers_are_killed_again_and_again");
    servers_are_killed(&name, Mask::default());
}

#[test]
fn servers_are_killed_again_and_again_by_messages() {
    let name = full_name(
        module_path!(),
        "servers_are_killed_again_and_again_by_messages",
    );
    servers_are_killed(&name, MESSAGES_ONLY);
}
