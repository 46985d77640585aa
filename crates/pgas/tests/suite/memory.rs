//! Teams, allocation, put and get, in real processes, with and without shared memory.

use samite_pgas::{
    Error, GlobalPtr, Group, Location, Pgas, Signal, SignalOp, Strided, Unit, Update, Wanted,
};
use samite_testkit::everywhere;

everywhere!(put_and_get, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let segment = world.allocate::<u64>(100)?;
    let (rank, size) = (world.rank(), world.size());
    assert_eq!(segment.get_value((rank + 1) % size, 99)?, 0, "it is zeroed");
    world.barrier()?;
    for to in 0..size {
        segment.put(to, 10 * u64::from(rank), &[u64::from(rank) + 1; 10])?;
    }
    world.barrier()?;
    let mut all = [0; 100];
    segment.read_local(0, &mut all)?;
    for (index, value) in all.iter().enumerate() {
        let expected = (index < 10 * size as usize).then(|| index as u64 / 10 + 1);
        assert_eq!(*value, expected.unwrap_or(0), "element {index}");
    }
    let over = segment.put(0, 95, &[1; 6]);
    let expected = Error::OutOfRange {
        unit: Unit(0).into(),
        first: 95,
        end: 101,
        len: 100,
    };
    assert_eq!(over, Err(expected));
    assert!(matches!(
        segment.get_value(0, 1 << 61),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        segment.put(size, 0, &[1]),
        Err(Error::NoSuchRank { .. })
    ));
    segment.put(0, 100, &[])?;
    Ok(segment.free()?)
});

everywhere!(pointers_lead_to_memory, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let segment = world.allocate::<f64>(8)?;
    let there = 1 - world.rank();
    let pointer = segment.pointer(there, 3)?;
    pgas.put(pointer, &[1.5, 2.5])?;
    world.barrier()?;
    assert_eq!(segment.get_value(world.rank(), 4)?, 2.5);
    let mut back = [0.0];
    pgas.get(pointer.add(1).at_unit(pgas.me()), &mut back)?;
    assert_eq!(back, [2.5]);

    let mine = pgas.allocate::<u32>(1000)?;
    let mut pointers = [0; 2];
    world.all_gather(&[mine.to_bits()][..], &mut pointers[..])?;
    let theirs = GlobalPtr::<u32>::from_bits(pointers[there as usize]);
    pgas.put(theirs.add(999), &[world.rank() + 7])?;
    world.barrier()?;
    let mut value = [0];
    pgas.get(mine.add(999), &mut value)?;
    assert_eq!(value, [there + 7]);
    world.barrier()?;
    pgas.free(mine)?;
    assert!(matches!(pgas.free(mine), Err(Error::BadPointer { .. })));
    world.barrier()?;
    let stale = pgas.get(theirs, &mut value);
    assert!(
        !cfg!(debug_assertions) || matches!(stale, Err(Error::BadPointer { .. })),
        "{stale:?}"
    );
    segment.free()?;
    world.barrier()?;
    assert!(matches!(
        pgas.put(pointer, &[0.0]),
        Err(Error::BadPointer { .. })
    ));
    assert!(matches!(
        pgas.put(GlobalPtr::NULL, &[0.0]),
        Err(Error::BadPointer { .. })
    ));
    Ok(world.barrier()?)
});

everywhere!(teams_of_teams, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let even = world.split_by(u64::from(world.rank() % 2))?;
    assert_eq!(even.size(), 2);
    assert_eq!(even.unit(even.rank())?, pgas.me());
    assert_eq!(even.rank_of(Unit((pgas.me().0 + 1) % 4)), None);
    let segment = even.allocate::<u32>(4)?;
    segment.put_value(1 - even.rank(), 0, pgas.me().0)?;
    even.barrier()?;
    assert_eq!(segment.get_value(even.rank(), 0)?, (pgas.me().0 + 2) % 4);
    segment.free()?;
    let first = world.create(&Group::first(3))?;
    assert_eq!(first.is_some(), pgas.me().0 < 3);
    if let Some(first) = first {
        let stranger = Group::first(4);
        assert_eq!(
            first.create(&stranger).err(),
            Some(Error::NotAMember(Unit(3).into()))
        );
        assert_ne!(first.id(), world.id());
        assert_eq!(pgas.team(first.id()).as_ref(), Some(&first));
        let id = first.id();
        first.destroy()?;
        assert_eq!(pgas.team(id), None);
    }
    Ok(world.barrier()?)
});

everywhere!(strided_and_indexed, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let segment = world.allocate::<u16>(1000)?;
    let there = 1 - world.rank();
    let place = Strided {
        first: 3,
        count: 50,
        block: 4,
        stride: 20,
    };
    let from: Vec<u16> = (0..200).map(|at| at + 1 + world.rank() as u16).collect();
    segment.put_strided(there, place, &from)?;
    let mut back = vec![0; 200];
    segment.get_strided(there, place, &mut back)?;
    assert_eq!(back, from);
    world.barrier()?;
    let mut mine = vec![0; 1000];
    segment.read_local(0, &mut mine)?;
    let inside = |index: usize| index >= 3 && (index - 3) % 20 < 4;
    for (index, value) in mine.iter().enumerate() {
        let place = (index.saturating_sub(3) / 20 * 4 + index.saturating_sub(3) % 20) as u16;
        let expected = if inside(index) {
            place + 1 + there as u16
        } else {
            0
        };
        assert_eq!(*value, expected, "element {index}");
    }
    world.barrier()?;
    let indices = [999, 0, 500, 1, 0];
    segment.put_indexed(there, &indices[..4], &[9, 8, 7, 6])?;
    let mut some = [0; 5];
    segment.get_indexed(there, &indices, &mut some)?;
    assert_eq!(some, [9, 8, 7, 6, 8]);
    assert!(matches!(
        segment.put_strided(
            there,
            Strided {
                stride: 21,
                ..place
            },
            &from
        ),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        segment.put_strided(there, place, &from[1..]),
        Err(Error::WrongLength {
            expected: 200,
            found: 199,
            ..
        })
    ));
    assert!(matches!(
        segment.get_indexed(there, &[1000], &mut some[..1]),
        Err(Error::OutOfRange { .. })
    ));
    segment.put_strided(
        there,
        Strided {
            first: 5000,
            count: 0,
            block: 4,
            stride: 1,
        },
        &[],
    )?;
    Ok(segment.free()?)
});

everywhere!(handles_and_flushes, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let segment = world.allocate::<u64>(10_000)?;
    let there = 1 - world.rank();
    let from: Vec<u64> = (0..10_000).collect();
    let handles: Vec<_> = from
        .chunks(100)
        .enumerate()
        .map(|(at, part)| segment.put_nb(there, at as u64 * 100, part))
        .collect::<Result<_, _>>()?;
    samite_pgas::wait_all(handles)?;
    let fetched = segment.get_nb(there, 5000, 5000)?.wait()?;
    assert_eq!(fetched, from[5000..]);
    world.barrier()?;
    for at in 0..10_000 {
        segment.put_implicit(there, at, &[at * at])?;
    }
    pgas.flush_local();
    pgas.flush(samite_pgas::Unit(there))?;
    let mut parts = [0; 300];
    let (left, right) = parts.split_at_mut(100);
    fabric.scope(|scope| -> samite_pgas::Result<()> {
        segment.get_in(scope, there, 0, left)?;
        segment.get_in(scope, there, 100, right)?;
        Ok(())
    })?;
    assert!(
        parts
            .iter()
            .enumerate()
            .all(|(at, value)| *value == (at * at) as u64)
    );
    pgas.flush_all()?;
    world.barrier()?;
    segment.put_signal(
        there,
        0,
        &[42; 9000],
        &segment,
        Signal {
            index: 9999,
            op: SignalOp::Set,
            value: 7,
        },
    )?;
    segment.wait_until(9999, Wanted::Equal(7))?;
    let mut data = vec![0; 9000];
    segment.read_local(0, &mut data)?;
    assert!(
        data.iter().all(|value| *value == 42),
        "what came with a signal is there"
    );
    world.barrier()?;
    segment.signal(
        there,
        Signal {
            index: 9999,
            op: SignalOp::Add,
            value: 3,
        },
    )?;
    assert_eq!(
        segment.wait_until_from(9999, Wanted::AtLeast(8), there)?,
        10
    );
    assert!(segment.test_signal(9999, Wanted::Differs(7))?);
    assert!(matches!(
        segment.wait_until(10_000, Wanted::Equal(0)),
        Err(Error::OutOfRange { .. })
    ));
    Ok(segment.free()?)
});

// A pointer has eight bits of the generation: this one equals one that led to memory which its
// owner has unregistered since.
everywhere!(a_pointer_comes_again, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let (mut bits, mut seen) = ([0], [0]);
    if world.rank() == 0 {
        bits = [pgas.register(vec![1_u64])?.to_bits()];
    }
    world.broadcast(0, &mut bits)?;
    let pointer = GlobalPtr::<u64>::from_bits(bits[0]);
    if world.rank() == 1 {
        pgas.get(pointer, &mut seen)?;
    }
    world.barrier()?;
    if world.rank() == 0 {
        pgas.unregister(pointer, 1)?;
        let mut again = pgas.register(vec![2_u64])?;
        for _ in 0..256 {
            if again == pointer {
                break;
            }
            pgas.unregister(again, 1)?;
            again = pgas.register(vec![2_u64])?;
        }
        assert_eq!(again, pointer);
    }
    world.barrier()?;
    if world.rank() == 1 {
        assert_eq!(seen, [1]);
        pgas.get(pointer, &mut seen)?;
        assert_eq!(seen, [2]);
        assert_eq!(pgas.fetch_op(pointer, Update::Sum, 1)?, 2);
    }
    Ok(world.barrier()?)
});

/// Every type and update from all units at once, against the sum of what they did.
fn updates<T: samite_pgas::AtomicElem + std::fmt::Debug>(
    pgas: &Pgas,
    of: impl Fn(u32) -> T,
) -> samite_pgas::Result<()> {
    let world = pgas.world();
    let segment = world.allocate::<T>(7)?;
    let (rank, size) = (world.rank(), world.size());
    for index in 0..5 {
        for _ in 0..10 {
            segment.fetch_add(0, index, of(rank + 1))?;
        }
    }
    segment.accumulate(0, 5, &[of(1), of(rank)], Update::Max)?;
    world.barrier()?;
    let sum = of(10 * (1..=size).sum::<u32>());
    for index in 0..5 {
        assert_eq!(segment.load(0, index)?, sum);
    }
    assert_eq!(segment.load(0, 6)?, of(size - 1));
    world.barrier()?;
    if rank == 1 {
        assert_eq!(segment.swap(0, 6, of(5))?, of(size - 1));
        assert_eq!(segment.compare_swap(0, 6, of(4), of(9))?, of(5));
        assert_eq!(segment.compare_swap(0, 6, of(5), of(9))?, of(5));
        assert_eq!(segment.fetch_op(0, 6, Update::Min, of(3))?, of(9));
        assert_eq!(segment.fetch_op(0, 6, Update::Prod, of(3))?, of(3));
        let pointer = segment.pointer(0, 6)?;
        assert_eq!(pgas.load(pointer)?, of(9));
        assert_eq!(segment.load(0, 5)?, of(1), "neighbours are as they were");
    }
    segment.free()
}

everywhere!(atomics_of_all_types, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    updates(pgas, |n| n as u8)?;
    updates(pgas, |n| n as i8)?;
    updates(pgas, |n| n as u16)?;
    updates(pgas, |n| n as i16)?;
    updates(pgas, |n| n)?;
    updates(pgas, |n| n as i32)?;
    updates(pgas, u64::from)?;
    updates(pgas, |n| n as i64)?;
    updates(pgas, |n| n as f32)?;
    updates(pgas, f64::from)?;
    let signed = world.allocate::<i32>(1)?;
    signed.fetch_op(0, 0, Update::Min, -5 - world.rank() as i32)?;
    world.barrier()?;
    assert_eq!(signed.load(0, 0)?, -7, "minima know the sign");
    let float = world.allocate::<f64>(1)?;
    assert!(matches!(
        float.fetch_op(0, 0, Update::BitAnd, 1.0),
        Err(Error::NoSuchUpdate("f64"))
    ));
    Ok(world.barrier()?)
});

everywhere!(irregular_access, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let segment = world.allocate::<u64>(100)?;
    let small = world.allocate::<u32>(5)?;
    let (rank, size) = (world.rank(), world.size());
    // Enough for several batches without an answer.
    let mut updates = segment.updates(Update::Sum);
    for at in 0..30_000u64 {
        updates.push((at % 3) as u32, at % 100, at)?;
    }
    updates.finish()?;
    let mut or = small.updates(Update::BitOr);
    for other in 0..size {
        or.push(other, 4, 1 << rank)?;
    }
    or.finish()?;
    world.barrier()?;
    let places: Vec<Location> = (0..20_000u64)
        .map(|at| Location {
            rank: (at % 3) as u32,
            index: at * 7 % 100,
        })
        .collect();
    let mut values = vec![0; places.len()];
    segment.get_scattered(&places, &mut values)?;
    let mut sums = [[0; 100]; 3];
    (0..30_000).for_each(|at| sums[at % 3][at % 100] += at as u64);
    for (place, value) in places.iter().zip(&values) {
        let sum = sums[place.rank as usize][place.index as usize];
        assert_eq!(*value, sum * u64::from(size), "{place:?}");
    }
    assert_eq!(small.load(rank, 4)?, 0b111);
    let mut wrong = segment.updates(Update::BitXor);
    let refused = wrong.push(0, 100, 1).and_then(|()| wrong.finish());
    assert!(matches!(
        refused,
        Err(samite_pgas::Error::OutOfRange { .. })
    ));
    let outside = [Location {
        rank: 0,
        index: 100,
    }];
    assert!(matches!(
        segment.get_scattered(&outside, &mut [0]),
        Err(Error::OutOfRange { .. })
    ));
    Ok(world.barrier()?)
});
