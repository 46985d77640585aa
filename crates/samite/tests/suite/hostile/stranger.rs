//! Lives of a hostile process. Some end in order, others by `kill -9` in the midst of something.

use crate::hostile::{FINISHED, HONEST};
use samite::stage::Stage;
use samite::{Fabric, Identity};
use samite_fabric::rpc::{Life, ServiceId};
use samite_fabric::{Match, PeerId, Remote, testing};
use samite_testkit::fuzz::{Rng, bytes};
use samite_testkit::hostile::{Liar, Reach, Scribbler, knock};
use samite_testkit::{Failed, Outcome, Unit, check};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// Slots of the domain's tables that it writes into.
const PEERS: u32 = 12;

fn identity(unit: &Unit, program: &str, life: u64) -> Identity {
    Identity {
        job: format!("stranger-{}-{life}", unit.rank),
        program: program.to_owned(),
        rank: 0,
        size: 1,
        unit: 0,
        units: 1,
    }
}

fn join(unit: &Unit, program: &str, life: u64, deadline: Duration) -> Outcome<Fabric> {
    let config = samite::FabricConfig {
        deadline,
        ..unit.config.clone()
    };
    // What the strangers say to the agent keeps it busy.
    let mut tries = 0;
    loop {
        match Fabric::join(&unit.domain, identity(unit, program, life), config.clone()) {
            Ok(fabric) => return Ok(fabric),
            Err(error) if tries == 100 => return Err(error.into()),
            Err(_) => tries += 1,
        }
    }
}

/// Lives so often, then waits until the honest units have gone.
pub(crate) fn live(unit: &Unit, seed: u64, lives: u64, reach: Option<Reach>) -> Outcome {
    let random = |life: u64| Rng::with_seed((seed << 8 | u64::from(unit.rank)) << 8 | life);
    if let Some(life) = samite_testkit::life() {
        let mut random = random(life);
        let frames = random.u32(..600);
        if let Err(Failed(why)) = one_life(unit, life, Some(frames), &mut random, reach) {
            samite_testkit::say(&format!("life {life}: {why}"));
        }
        samite_testkit::die();
    }
    for life in 0..lives {
        let mut random = random(life);
        for _ in 0..5 {
            knock(&unit.domain, &mut random);
        }
        if random.bool() {
            let ended = samite_testkit::live_once(life).map_err(Failed::new)?;
            check!(ended.signal() == Some(9), "a life ended by {ended}");
        } else if let Err(Failed(why)) = one_life(unit, life, None, &mut random, reach) {
            samite_testkit::say(&format!("life {life}: {why}"));
        }
    }
    if reach == Some(Reach::All) {
        return Ok(());
    }
    let fabric = join(unit, FINISHED, lives, Duration::from_secs(30))?;
    let is_there = |fabric: &Fabric| {
        fabric
            .peers()
            .iter()
            .any(|info| info.identity.job == unit.domain)
    };
    while is_there(&fabric) {
        std::thread::yield_now();
    }
    Ok(())
}

/// `frames`: it dies after so many, at the latest when it returns.
fn one_life(
    unit: &Unit,
    life: u64,
    frames: Option<u32>,
    random: &mut Rng,
    reach: Option<Reach>,
) -> Outcome {
    let mut unit = unit.clone();
    if random.bool() {
        unit.config.mask = samite_testkit::MESSAGES_ONLY;
    }
    let fabric = join(&unit, "stranger", life, Duration::from_secs(5))?;
    fabric.set_deadline(Duration::from_millis(2));
    let rate = *random.choice(&[20, 100, 400]).unwrap_or(&100);
    let liar = Liar::new(random.u64(..), rate);
    if let Some(frames) = frames {
        liar.die_after(frames);
    }
    testing::tamper(&fabric, Box::new(liar.clone()));
    // What it has of others until it ends.
    let mut held = Vec::new();
    let segment = fabric.allocate(4096)?;
    let private = fabric.register(vec![0u8; 5000])?;
    let mut scribbler = reach.map(|reach| Scribbler::new(random.u64(..), &fabric, PEERS, reach));
    let peers: Vec<PeerId> = fabric.peers().iter().map(|info| info.peer).collect();
    for _ in 0..12 {
        for to in peers.iter().copied().filter(|peer| *peer != fabric.me()) {
            something(&fabric, to, &mut held, random);
            for _ in 0..random.u32(0..4) {
                testing::send(&fabric, to, &liar.lie());
            }
        }
        streams(&fabric, random);
        fabric.progress();
        if let Some(scribbler) = &mut scribbler {
            scribbler.scribble(random.u32(1..30));
        }
    }
    if frames.is_some() {
        samite_testkit::die();
    }
    drop((segment, private));
    Ok(())
}

/// What an honest unit would do, too; the liar makes something else of it.
fn something(fabric: &Fabric, to: PeerId, held: &mut Vec<Remote>, random: &mut Rng) {
    let tag = random.u64(..4);
    match random.u32(..7) {
        0 => drop(fabric.isend(to, tag, bytes(random, 500))),
        1 => drop(fabric.isend(to, tag, vec![1; 50_000])),
        2 => drop(fabric.irecv(Match::from(to, tag), vec![0; 100])),
        3 | 4 => {
            let peers = fabric.peers();
            let Some(info) = peers.iter().find(|info| info.peer == to) else {
                return;
            };
            let incarnation = info.incarnation;
            let to = Life {
                peer: to,
                incarnation,
            };
            let deadline = fabric.deadline();
            for service in [
                ServiceId::HOST,
                ServiceId::COORDINATOR,
                ServiceId::BLOCK_STORE,
            ] {
                drop(fabric.call(service, to, deadline, |_| bytes(random, 200)));
                drop(fabric.note(service, to, deadline, &bytes(random, 9000)));
            }
        }
        5 => drop(fabric.signal(to, tag)),
        _ => {
            // Only read: it is for the honest ones to write to each other.
            if let Ok(Some(key)) = fabric.look_up(to, random.u32(..6))
                && let Ok(remote) = fabric.attach(key)
            {
                drop(remote.get_nb(0, 8.min(key.bytes)));
                if held.len() < 8 {
                    held.push(remote);
                }
            }
        }
    }
}

/// Takes part in streams, its own ones and those of the others.
fn streams(fabric: &Fabric, random: &mut Rng) {
    let Ok(stage) = Stage::join(fabric) else {
        return;
    };
    let name = match random.bool() {
        true => format!("stream-{}", random.u32(..20)),
        false => format!("own-{}", fabric.me()),
    };
    if random.bool() {
        if let Ok(mut reader) = stage.reader(&name) {
            let _ = reader.next();
        }
    } else if let Ok(mut writer) = stage.writer(&name) {
        let values = ndarray_of(random.usize(1..200));
        if let Ok(mut step) = writer.step() {
            let _ = step.put("u", [values.len() as u64], [0], values.view());
            let _ = step.commit();
        }
        if random.bool() {
            drop(writer.close());
        }
    }
}

fn ndarray_of(count: usize) -> samite::ndarray::Array1<f64> {
    samite::ndarray::Array1::from_elem(count, f64::from(HONEST))
}
