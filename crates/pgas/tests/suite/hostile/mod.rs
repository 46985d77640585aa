//! A unit that says other things than it means to its team, and pointers that point nowhere. The
//! others get errors of a type, or values of the liar; never a panic.
//!
//! `SAMITE_FUZZ_SEED=N` repeats a seed; `SAMITE_FUZZ_MINUTES=N` runs others for so long.

use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Config, Fabric, Identity, PeerId, testing};
use samite_pgas::array::Map;
use samite_pgas::{GlobalPtr, Pgas, Result, Strided, Sum, Update};
use samite_testkit::fuzz::{self, Rng, word};
use samite_testkit::hostile::{Liar, Reach, Scribbler};
use samite_testkit::{Cluster, Outcome, Unit, Who, check, units};
use std::time::Duration;

/// The last unit: the first one has the roots of most things.
const LIAR: PeerId = PeerId::new(2, 0);

/// A bit of everything that units do together. Whoever gets an error goes on with the next thing:
/// so members are at different places of the program, too.
fn program(fabric: &Fabric, random: &mut Rng) -> Result<()> {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let me = world.rank();
    let segment = world.allocate::<u64>(600);
    for _ in 0..random.u32(4..12) {
        // All members draw the same numbers.
        let count = random.usize(1..700);
        let root = random.u32(..3);
        let mine = vec![u64::from(me); count];
        let mut all = vec![0u64; 3 * count];
        match random.u32(..13) {
            0 => drop(world.barrier()),
            1 => drop(world.broadcast(root, &mut all[..])),
            2 => drop(world.all_gather(&mine[..], &mut all[..])),
            3 => drop(world.all_to_all(&all.clone()[..], &mut all[..])),
            4 => drop(world.all_reduce(&mine[..], &mut all[..count], Sum)),
            5 => drop(
                world
                    .iall_reduce(mine, Sum)
                    .and_then(|pending| pending.wait()),
            ),
            6 => drop(world.scan(&mine[..], &mut all[..count], Sum)),
            7 => {
                let lock = world.lock();
                drop(lock.and_then(|lock| lock.acquire()?.release()));
            }
            8 => drop(world.duplicate().and_then(|team| team.destroy())),
            9 => {
                let map = Map::<u64, u64>::new(world, 64);
                drop(map.and_then(|map| {
                    map.insert(u64::from(me), 7)?;
                    map.get(&1)?;
                    map.free()
                }));
            }
            10 => drop(world.igather(root, mine).and_then(|pending| pending.wait())),
            _ => {
                let Ok(segment) = &segment else { continue };
                drop(segment.put(root, 3, &[1, 2, 3]));
                drop(segment.get(root, 100, &mut all[..count.min(300)]));
                drop(segment.fetch_op(root, 0, Update::Sum, 2));
                let place = Strided {
                    first: 5,
                    count: 7,
                    block: 2,
                    stride: 9,
                };
                drop(segment.get_strided(root, place, &mut all[..14.min(3 * count)]));
                drop(segment.get_nb(root, 0, 100).and_then(|fetch| fetch.wait()));
            }
        }
    }
    Ok(())
}

#[test]
fn a_member_that_lies() {
    fuzz::rounds("hostile::a_member_that_lies", 200, |seed, random| {
        let mut scenario = Scenario::new(seed, 3);
        scenario.config.deadline = Duration::from_millis(random.u64(1..20));
        let rate = *random.choice(&[5, 50, 300]).unwrap_or(&50);
        scenario.run(|fabric| {
            if fabric.me() == LIAR {
                testing::tamper(fabric, Box::new(Liar::new(seed, rate)));
            }
            // How it ends is not asked: that it does, in order, is all.
            let _ = program(fabric, &mut Rng::with_seed(seed));
        });
    });
}

const MEMBERS: u32 = 3;

/// The members of a job, and one who is none of them and writes into all memory that they offer:
/// boards, locks, maps, segments.
fn scribbled(unit: &Unit, seed: u64) -> Outcome {
    if unit.rank < MEMBERS {
        let identity = Identity {
            size: MEMBERS,
            units: MEMBERS,
            ..unit.identity()
        };
        let fabric = Fabric::join(&unit.domain, identity, unit.config.clone())?;
        fabric.job()?;
        samite_testkit::pause("joined");
        fabric.set_deadline(Duration::from_millis(20));
        for turn in 0..6 {
            // How it ends is not asked: that it does, in order, is all.
            let _ = program(&fabric, &mut Rng::with_seed(seed << 8 | turn));
        }
        return Ok(());
    }
    let fabric = Fabric::join(
        &unit.domain,
        Identity::by_hand("scribbler"),
        unit.config.clone(),
    )?;
    samite_testkit::pause("joined");
    let mut random = Rng::with_seed(seed);
    let is_there = |fabric: &Fabric| {
        let peers = fabric.peers();
        peers.iter().any(|info| info.identity.job == unit.domain)
    };
    let mut written = 0;
    while is_there(&fabric) {
        let mut scribbler = Scribbler::new(random.u64(..), &fabric, MEMBERS + 1, Reach::Segments);
        scribbler.scribble(random.u32(1..20));
        written += scribbler.written();
        std::thread::yield_now();
    }
    check!(written > 0, "there was no memory to write to");
    Ok(())
}

#[test]
fn memory_that_somebody_else_writes() {
    let name = "hostile::memory_that_somebody_else_writes";
    fuzz::rounds(name, 3, |seed, _| {
        let orchestrator = |cluster: &mut Cluster| {
            cluster.wait_all("joined");
            for rank in 0..=MEMBERS {
                cluster.release(Who::Unit(rank));
            }
        };
        let processes = units(MEMBERS + 1).seed(seed);
        processes.orchestrate_bare(name, |unit| scribbled(unit, seed), orchestrator);
    });
}

#[test]
fn pointers_that_point_nowhere() {
    let config = Config {
        budget: Some(64 << 20),
        deadline: Duration::from_millis(1),
        ..Config::default()
    };
    let fabric = Fabric::alone(Identity::by_hand("test"), config).expect("a domain of one");
    let pgas = Pgas::new(&fabric).expect("it is alone");
    let segment = pgas.world().allocate::<u64>(100).expect("there is memory");
    let real = segment.pointer(0, 0).expect("it is there").to_bits();
    fuzz::rounds("hostile::pointers_that_point_nowhere", 5000, |_, random| {
        let bits = match random.u32(..3) {
            0 => u128::from(word(random)) << 64 | u128::from(word(random)),
            1 => real ^ 1 << random.u32(..128),
            _ => real & !u128::from(u64::MAX) | u128::from(word(random)),
        };
        let pointer = GlobalPtr::<u64>::from_bits(bits);
        let near = |pointer: GlobalPtr<u64>| pointer.offset() < 800;
        let mut into = [0; 4];
        let got = pgas.get(pointer, &mut into);
        assert!(got.is_err() || near(pointer), "{pointer:?}");
        if !near(pointer) {
            assert!(pgas.put(pointer, &[1]).is_err(), "{pointer:?}");
            assert!(
                pgas.fetch_op(pointer, Update::Sum, 1).is_err(),
                "{pointer:?}"
            );
        }
        drop(pgas.put_nb(pointer, &[]));
        drop(pgas.load(pointer.cast::<u32>()));
        if bits != real {
            drop(pgas.free(pointer));
        }
        let (index, count) = (word(random), word(random));
        let place = Strided {
            first: index,
            count: count % 100,
            block: word(random) % 8,
            stride: word(random),
        };
        drop(segment.get_strided(0, place, &mut into));
        drop(segment.get_value(0, index));
        drop(segment.put(word(random) as u32, index, &[1]));
        drop(segment.get_indexed(0, &[index, count], &mut into[..2]));
    });
}
