//! Offsets, ranks, units and pointers that are not there.

use samite_fabric::Error as Below;
use samite_pgas::{
    Error, GlobalPtr, Group, Location, Pgas, Result, Signal, SignalOp, Strided, Unit, Update,
    Wanted,
};
use samite_testkit::{check, everywhere, same};

everywhere!(offsets_beyond, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u64>(100)?;
    let bytes = world.allocate::<u8>(7)?;
    let there = 1 - world.rank();
    let over = |done: Result<()>| matches!(done, Err(Error::OutOfRange { .. }));
    let beyond = [
        99,
        100,
        101,
        1 << 20,
        u64::MAX / 8,
        u64::MAX / 8 + 1,
        u64::MAX - 1,
        u64::MAX,
    ];
    for first in beyond {
        check!(over(data.put(there, first, &[1; 2])), "{first}");
        check!(over(data.get(there, first, &mut [1; 2])), "{first}");
        check!(
            over(data.put_nb(there, first, &[1; 2]).map(drop)),
            "{first}"
        );
        check!(over(data.put_implicit(there, first, &[1; 2])), "{first}");
        check!(over(data.get_nb(there, first, 2).map(drop)), "{first}");
        check!(
            over(data.accumulate(there, first, &[1; 2], Update::Sum)),
            "{first}"
        );
        check!(over(data.read_local(first, &mut [1; 2])), "{first}");
        check!(over(data.write_local(first, &[1; 2])), "{first}");
        check!(over(data.get_indexed(
            there,
            &[0, first + u64::from(first < 100)],
            &mut [1; 2]
        )));
        let blocks = |first, count, block, stride| Strided {
            first,
            count,
            block,
            stride,
        };
        check!(over(data.put_strided(
            there,
            blocks(first, 1, 2, 1),
            &[1; 2]
        )));
        check!(over(data.get_strided(
            there,
            blocks(0, 2, 1, first.max(100)),
            &mut [1; 2]
        )));
    }
    for index in &beyond[1..] {
        check!(over(data.fetch_add(there, *index, 1).map(drop)), "{index}");
        check!(
            over(data.compare_swap(there, *index, 0, 1).map(drop)),
            "{index}"
        );
        check!(over(data.load(there, *index).map(drop)), "{index}");
        check!(
            over(data.wait_until(*index, Wanted::Equal(0)).map(drop)),
            "{index}"
        );
        let signal = Signal {
            index: *index,
            op: SignalOp::Set,
            value: 1,
        };
        check!(over(data.signal(there, signal)), "{index}");
        check!(
            over(data.put_signal(there, 0, &[5], &data, signal)),
            "{index}"
        );
        let place = Location {
            rank: there,
            index: *index,
        };
        check!(over(data.get_scattered(&[place], &mut [0])), "{index}");
        let mut updates = data.updates(Update::Sum);
        let pushed = updates.push(there, *index, 1);
        check!(over(pushed.and(updates.finish())), "{index}");
    }
    // Parts of small elements are padded: that is not theirs.
    for index in [6, 7, 8] {
        check!(over(bytes.put(there, index, &[1; 2])), "{index}");
    }
    check!(over(bytes.put_value(there, 7, 1)));
    check!(over(bytes.fetch_add(there, 7, 1).map(drop)));
    // Pointers are not checked when they are computed, but when they are used.
    let pointer = data.pointer(there, 99)?;
    check!(data.pointer(there, 101).is_err());
    let bad = |done: Result<()>| {
        matches!(
            done,
            Err(Error::OutOfRange { .. }
                | Error::Fabric(Below::OutOfRange { .. } | Below::Misaligned(_))
                | Error::BadPointer { .. })
        )
    };
    for far in [1, 1 << 40, i64::MAX / 8, -100, i64::MIN / 8] {
        check!(bad(pgas.put(pointer.add(far), &[1])), "{far}");
        check!(bad(pgas.get(pointer.add(far), &mut [1])), "{far}");
        check!(
            bad(pgas.fetch_op(pointer.add(far), Update::Sum, 1).map(drop)),
            "{far}"
        );
    }
    world.barrier()?;
    let mut found = [0; 100];
    data.read_local(0, &mut found)?;
    // The data of the signals that went nowhere.
    found[0] = 0;
    let changed: Vec<_> = (0..100).filter(|at| found[*at] != 0).collect();
    check!(changed.is_empty(), "{changed:?}");
    Ok(world.barrier()?)
});

everywhere!(units_and_ranks_that_are_not_there, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let odd = world.split_by(u64::from(world.rank() % 2))?;
    let data = odd.allocate::<u32>(4)?;
    for rank in [odd.size(), 3, u32::MAX] {
        let nobody =
            |done: Result<()>| matches!(done, Err(Error::NoSuchRank { rank: r, .. }) if r == rank);
        check!(nobody(data.put(rank, 0, &[1])));
        check!(nobody(data.get(rank, 0, &mut [1])));
        check!(nobody(data.fetch_add(rank, 0, 1).map(drop)));
        check!(nobody(data.pointer(rank, 0).map(drop)));
        check!(nobody(data.len_of(rank).map(drop)));
        check!(nobody(odd.unit(rank).map(drop)));
        check!(nobody(odd.peer(rank).map(drop)));
    }
    // Unit 1 is not in the team of the even ones, and the other way round.
    let stranger = Unit((pgas.me().0 + 1) % 2);
    same!(odd.rank_of(stranger), None);
    let with_stranger = Group::from_iter([pgas.me(), stranger]);
    same!(
        odd.create(&with_stranger).err(),
        Some(Error::NotAMember(stranger.into()))
    );
    for unit in [Unit(3), Unit(u32::MAX - 1)] {
        same!(pgas.flush(unit).err(), None);
        same!(
            pgas.node_of(unit).err(),
            Some(Error::NotAMember(unit.into()))
        );
        let nowhere = data.pointer(odd.rank(), 0)?.at_unit(unit);
        same!(
            pgas.put(nowhere, &[1]).err(),
            Some(Error::NotAMember(unit.into()))
        );
    }
    Ok(world.barrier()?)
});

everywhere!(freed_and_foreign_pointers, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let there = 1 - world.rank();
    let bad = |done: Result<()>| matches!(done, Err(Error::BadPointer { .. }));
    let data = world.allocate::<u64>(4)?;
    let freed = data.pointer(there, 1)?;
    data.free()?;
    world.barrier()?;
    // The same number, perhaps the same place: another use of it.
    let again = world.allocate::<u64>(4)?;
    same!(again.pointer(there, 1)?.segment(), freed.segment());
    check!(bad(pgas.put(freed, &[1])));
    check!(bad(pgas.get(freed, &mut [1])));
    check!(bad(pgas.put_nb(freed, &[1]).map(drop)));
    check!(bad(pgas.fetch_op(freed, Update::Sum, 1).map(drop)));
    check!(bad(pgas.load(freed).map(drop)));
    same!(again.get_value(there, 1)?, 0);
    // Bits that nobody gave out.
    for bits in [
        0,
        1,
        u128::MAX,
        1 << 127,
        0x0000_0001_ffff_0001 << 64,
        0x0000_0000_0300_0002 << 64,
    ] {
        let foreign = GlobalPtr::<u64>::from_bits(bits).at_unit(Unit(there));
        check!(pgas.put(foreign, &[1]).is_err(), "{foreign}");
        check!(pgas.get(foreign, &mut [1]).is_err(), "{foreign}");
    }
    check!(bad(pgas.put(GlobalPtr::<u8>::NULL, &[1])));
    // Memory of one unit: only it frees, and once, and what it allocated.
    let mine = pgas.allocate::<u64>(3)?;
    let kept = pgas.register(vec![1_u64, 2])?;
    let mut all = [0; 4];
    world.all_gather(&[mine.to_bits(), kept.to_bits()], &mut all)?;
    let theirs = |at: u32| GlobalPtr::<u64>::from_bits(all[(2 * there + at) as usize]);
    check!(bad(pgas.free(theirs(0))));
    check!(bad(pgas.unregister(theirs(1), 2).map(drop)));
    check!(bad(pgas.free(mine.add(1))));
    check!(bad(pgas.free(kept)));
    check!(bad(pgas.free(again.pointer(world.rank(), 0)?)));
    pgas.put(theirs(1), &[7])?;
    world.barrier()?;
    same!(pgas.unregister(kept, 2)?, [7, 2]);
    check!(bad(pgas.unregister(kept, 2).map(drop)));
    pgas.free(mine)?;
    check!(bad(pgas.free(mine)));
    // Nor what has its place now.
    let (other, anew) = (pgas.register(vec![3_u64])?, pgas.allocate::<u64>(3)?);
    same!(
        (other.segment(), anew.offset()),
        (kept.segment(), mine.offset())
    );
    check!(bad(pgas.unregister(kept, 1).map(drop)));
    check!(bad(pgas.free(mine)));
    same!(pgas.unregister(other, 1)?, [3]);
    pgas.free(anew)?;
    world.barrier()?;
    check!(bad(pgas.get(theirs(1), &mut [0])));
    Ok(world.barrier()?)
});
