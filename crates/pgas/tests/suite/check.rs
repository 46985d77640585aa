//! The checking mode: programs with a race are reported, with both sides; programs without one are
//! not (more of those in `litmus`).

use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Fabric, PeerId};
use samite_pgas::{
    AccessKind, Conflict, Error, Pgas, Segment, Signal, SignalOp, Strided, Sum, Team, Unit, Update,
    Wanted,
};
use samite_testkit::{Failed, MESSAGES_ONLY, Outcome, check, full_name, same, units};

/// A body as three tests in the checking mode: mapped, messages, simulated.
macro_rules! checked {
    ($name:ident, $units:expr, $body:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn mapped() {
                let units = units($units).config(|config| config.check = true);
                units.run(&full_name(module_path!(), "mapped"), $body);
            }

            #[test]
            fn messages() {
                let units = units($units).config(|config| config.check = true);
                let units = units.mask(MESSAGES_ONLY);
                units.run(&full_name(module_path!(), "messages"), $body);
            }

            #[test]
            fn simulated() {
                for seed in 0..4 {
                    simulate(seed, $units, $body);
                }
            }
        }
    };
}

fn simulate(seed: u64, units: u32, body: impl Fn(&Fabric, &[PeerId]) -> Outcome + Sync) {
    let mut scenario = Scenario::new(seed, units);
    scenario.config.check = true;
    let ended = scenario.run(|fabric| {
        let members = fabric.job()?;
        body(fabric, &members)
    });
    for (unit, ended) in ended.into_iter().enumerate() {
        assert!(ended.is_ok(), "seed {seed}, unit {unit}: {ended:?}");
    }
}

/// The next collective ends with a conflict, at all members.
fn barrier_says(world: &Team) -> Outcome<Conflict> {
    match world.barrier() {
        Err(Error::Conflict(conflict)) => Ok(*conflict),
        other => Err(Failed::new(format!("no conflict was reported: {other:?}"))),
    }
}

/// The two sides, the lower unit first.
fn sides(conflict: &Conflict) -> [(u32, AccessKind); 2] {
    let mut sides = [&conflict.earlier, &conflict.later].map(|side| (side.unit.0, side.kind));
    sides.sort_by_key(|(unit, _)| *unit);
    sides
}

checked!(a_put_and_a_get_without_order, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u32>(100)?;
    match world.rank() {
        0 => data.put(2, 10, &[1; 20])?,
        1 => data.get(2, 25, &mut [0; 50])?,
        _ => {}
    }
    let found = barrier_says(world)?;
    same!(found.owner, Unit(2));
    let text = found.to_string();
    check!(text.contains("of unit.2: a"), "{text}");
    check!(
        text.contains("a put by unit.0 at ") && text.contains("a get by unit.1 at "),
        "{text}"
    );
    same!(found.elements, 25..30);
    same!(found.element_bytes, 4);
    same!(sides(&found), [(0, AccessKind::Put), (1, AccessKind::Get)]);
    for side in [&found.earlier, &found.later] {
        check!(
            side.place.contains("tests/suite/check.rs:"),
            "{}",
            side.place
        );
    }
    // Whoever came second has it.
    let mine = usize::from(found.later.unit == pgas.me());
    same!(pgas.conflicts(), vec![found; mine]);
    // It is told once; the program may go on.
    Ok(world.barrier()?)
});

checked!(two_puts_of_one_byte, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u8>(10)?;
    // Neighbours are no conflict.
    let mine = u64::from(world.rank());
    data.put(0, 3 * mine, &[1; 3])?;
    world.barrier()?;
    data.put(0, 2 * mine, &[2; 3])?;
    let found = barrier_says(world)?;
    same!(found.elements, 2..3);
    same!(sides(&found), [(0, AccessKind::Put), (1, AccessKind::Put)]);
    Ok(world.barrier()?)
});

checked!(a_flush_that_was_forgotten, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u64>(4)?;
    if world.rank() == 0 {
        data.put_implicit(1, 0, &[1, 2])?;
    }
    // It is in order with a flush before the barrier, and only then.
    world.barrier()?;
    if world.rank() == 1 {
        data.read_local(0, &mut [0; 4])?;
    }
    let found = barrier_says(world)?;
    same!(
        sides(&found),
        [(0, AccessKind::ImplicitPut), (1, AccessKind::Get)]
    );
    // Nor is a unit's own get in order with it.
    data.put_implicit(0, u64::from(world.rank()), &[1])?;
    data.get_value(0, u64::from(world.rank()))?;
    barrier_says(world)?;
    pgas.flush_all()?;
    Ok(world.barrier()?)
});

checked!(atomics_do_not_mix_with_puts, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u64>(4)?;
    for _ in 0..10 {
        data.fetch_add(0, 1, 1)?;
        data.accumulate(0, 0, &[1; 4], Update::Sum)?;
        data.load(0, 2)?;
    }
    world.barrier()?;
    match world.rank() {
        0 => drop(data.load(0, 3)?),
        _ => data.put_value(0, 3, 5)?,
    }
    let found = barrier_says(world)?;
    same!(sides(&found), [(0, AccessKind::Load), (1, AccessKind::Put)]);
    Ok(world.barrier()?)
});

checked!(pointers_and_strides_name_the_same_bytes, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u16>(1000)?;
    let pointer = data.pointer(1, 405)?;
    let place = Strided {
        first: 1,
        count: 10,
        block: 4,
        stride: 100,
    };
    match world.rank() {
        0 => pgas.put(pointer, &[1])?,
        _ => data.put_strided(1, place, &[2; 40])?,
    }
    // 401..405 is a block, 405 is not in it.
    world.barrier()?;
    match world.rank() {
        0 => pgas.put(pointer.add(-1), &[1])?,
        _ => data.get_strided(1, place, &mut [2; 40])?,
    }
    let found = barrier_says(world)?;
    same!(found.elements, 404..405);
    world.barrier()?;
    let mine = pgas.allocate::<u64>(1)?;
    let mut bits = mine.to_bits();
    world.broadcast(0, std::slice::from_mut(&mut bits))?;
    let zeros = samite_pgas::GlobalPtr::<u64>::from_bits(bits);
    pgas.put_implicit(zeros, &[3])?;
    barrier_says(world).map(drop)
});

checked!(locks_order_only_those_that_take_the_same, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let locks = [world.lock()?, world.lock()?];
    let data = world.allocate::<u64>(1)?;
    for _ in 0..5 {
        let _guard = locks[0].acquire()?;
        data.put_value(0, 0, data.get_value(0, 0)? + 1)?;
    }
    world.barrier()?;
    same!(data.get_value(1, 0)?, 0);
    world.barrier()?;
    let guard = locks[world.rank() as usize].acquire()?;
    data.put_value(0, 0, 9)?;
    guard.release()?;
    let found = barrier_says(world)?;
    same!(sides(&found), [(0, AccessKind::Put), (1, AccessKind::Put)]);
    Ok(world.barrier()?)
});

/// Puts with a signal, for the `round`th time; in the second round the other looks too early.
fn signalled(world: &Team, data: &Segment<u64>, signals: &Segment<u64>, round: u64) -> Outcome {
    let signal = Signal {
        index: 0,
        op: SignalOp::Add,
        value: 1,
    };
    if world.rank() == 0 {
        data.put_signal(1, 0, &[1; 8], signals, signal)?;
        signals.wait_until(1, Wanted::AtLeast(round))?;
        return Ok(());
    }
    if round == 2 {
        data.read_local(7, &mut [0])?;
    }
    signals.wait_until(0, Wanted::AtLeast(round))?;
    data.read_local(0, &mut [0; 8])?;
    let done = Signal { index: 1, ..signal };
    Ok(signals.signal(0, done)?)
}

checked!(data_before_their_signal, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let (data, signals) = (world.allocate::<u64>(8)?, world.allocate::<u64>(2)?);
    signalled(world, &data, &signals, 1)?;
    pgas.flush_all()?;
    world.barrier()?;
    signalled(world, &data, &signals, 2)?;
    let found = barrier_says(world)?;
    same!(found.elements, 7..8);
    Ok(world.barrier()?)
});

checked!(collectives_order_what_they_connect, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u64>(1)?;
    // From the root to all: then the root's element may be read.
    if world.rank() == 0 {
        data.put_value(0, 0, 1)?;
    }
    let mut one = [0_u64];
    world.broadcast(0, &mut one)?;
    data.get_value(0, 0)?;
    // From all to the root: then it may be written again, by the root.
    world.reduce(0, &[1_u64], &mut one, Sum)?;
    if world.rank() == 0 {
        data.put_value(0, 0, 2)?;
    }
    // This way round it says nothing of the root to the others.
    world.reduce(0, &[1_u64], &mut one, Sum)?;
    if world.rank() == 1 {
        data.get_value(0, 0)?;
    }
    let found = barrier_says(world)?;
    same!(sides(&found), [(0, AccessKind::Put), (1, AccessKind::Get)]);
    // A non-blocking one orders when it has ended.
    if world.rank() == 2 {
        data.put_value(0, 0, 3)?;
    }
    world.ibroadcast(2, vec![1_u8])?.wait()?;
    data.get_value(0, 0)?;
    world.barrier()?;
    let ended = world.ibarrier()?;
    data.put_value(world.rank(), 0, 4)?;
    data.get_value((world.rank() + 1) % 3, 0)?;
    ended.wait()?;
    barrier_says(world).map(drop)
});

checked!(phases_order, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let there = 1 - world.rank();
    let shared = world.allocate::<u64>(4)?;
    shared.put(there, 0, &[1; 4])?;
    let mut local = shared.into_local()?;
    local.as_mut_slice()[0] = 5;
    let shared = local.into_shared()?;
    shared.put(world.rank(), 0, &[2; 4])?;
    let shared = shared.into_read_only()?.into_shared()?;
    shared.get(there, 0, &mut [0; 4])?;
    world.barrier()?;
    // What was done to memory that is freed is forgotten with it.
    drop(shared);
    world.barrier()?;
    let again = world.allocate::<u64>(4)?;
    again.put(there, 0, &[1; 4])?;
    again.free()?;
    same!(pgas.conflicts(), []);
    Ok(())
});

#[test]
fn it_is_off_unless_it_is_wanted() {
    units(2).run("check::it_is_off_unless_it_is_wanted", |fabric, _| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let data = world.allocate::<u64>(1)?;
        data.put_value(0, 0, 1)?;
        world.barrier()?;
        same!(pgas.conflicts(), []);
        Ok(())
    });
}
