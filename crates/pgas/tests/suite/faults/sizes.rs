//! Sizes that no memory holds, and sizes beyond 32 bits.

use samite_fabric::{Fabric, PeerId};
use samite_pgas::{Error, Pending, Pgas, Strided};
use samite_testkit::{
    MESSAGES_ONLY, Outcome, check, everywhere, matches_or_fail, require, same, units,
};

everywhere!(sizes_that_no_memory_holds, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    // What collectives need is there from the first one on.
    world.allocate::<u64>(1)?.free()?;
    let before = fabric.shared_bytes();
    for count in [1 << 60, u64::MAX / 8, u64::MAX] {
        let refused = world.allocate::<u64>(count).map(drop);
        matches_or_fail!(
            refused,
            Err(Error::TooLarge { .. } | Error::NoMemory(_) | Error::Fabric(_))
        );
        let refused = pgas.allocate::<u64>(count).map(drop);
        matches_or_fail!(refused, Err(Error::TooLarge { .. } | Error::Fabric(_)));
    }
    let refused = pgas.allocate::<u8>(i64::MAX as u64).map(drop);
    matches_or_fail!(refused, Err(Error::TooLarge { .. }));
    // Within an address space, and beyond the budget, at one member only or at all.
    let refused = world.allocate::<u8>(1 << 40).map(drop);
    matches_or_fail!(
        refused,
        Err(Error::Fabric(samite_fabric::Error::Budget { .. }) | Error::NoMemory(_))
    );
    check!(fabric.shared_bytes() <= before + (1 << 20));
    // Other counts at other members.
    let refused = world.allocate::<u64>(1 + u64::from(world.rank())).map(drop);
    matches_or_fail!(refused, Err(Error::Mismatch { .. }));
    // Other elements at other members, as many.
    for count in [0, 5, 100_000] {
        let refused = match world.rank() {
            0 => world.allocate::<u8>(count).map(drop),
            _ => world.allocate::<u64>(count).map(drop),
        };
        matches_or_fail!(refused, Err(Error::Mismatch { .. }));
        let refused = match world.rank() {
            0 => world.register(vec![1_u8; count as usize]).map(drop),
            _ => world.register(vec![1_u64; count as usize]).map(drop),
        };
        matches_or_fail!(refused, Err(Error::Mismatch { .. }));
    }
    // It goes on.
    let data = world.allocate::<u64>(10)?;
    data.put_value(1 - world.rank(), 9, 4)?;
    Ok(data.free()?)
});

// Counts are looked at before there is memory for them.
everywhere!(counts_that_no_memory_holds, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let there = 1 - world.rank();
    let data = world.allocate::<u64>(100)?;
    let kept = pgas.register(vec![5_u64; 10])?;
    for count in [101, 1 << 40, 1 << 58, u64::MAX / 8, u64::MAX] {
        let over = data.get_nb(there, 0, count).map(drop);
        matches_or_fail!(over, Err(Error::OutOfRange { .. }));
        matches_or_fail!(
            data.get_nb(there, count, 1).map(drop),
            Err(Error::OutOfRange { .. })
        );
        let over = pgas.unregister(kept, count).map(drop);
        matches_or_fail!(over, Err(Error::OutOfRange { .. }));
    }
    same!(pgas.unregister(kept, 10)?, [5; 10]);
    // Blocks of nothing, however many.
    for (count, stride) in [(u64::MAX, 0), (1 << 40, 1), (u64::MAX, u64::MAX)] {
        let place = Strided {
            first: 0,
            count,
            block: 0,
            stride,
        };
        data.put_strided(there, place, &[])?;
        data.get_strided(there, place, &mut [])?;
    }
    let refused = |what: &str, answer: Result<(), Error>| -> Outcome {
        let refused = matches!(
            answer,
            Err(Error::OutOfMemory { .. }
                | Error::TooLarge { .. }
                | Error::WrongLength { .. }
                | Error::Refused(_)
                | Error::Mismatch { .. })
        );
        check!(refused, "{what}: {answer:?}");
        Ok(())
    };
    for count in [1 << 45, 1 << 58, u64::MAX / 8, u64::MAX] {
        let wait = |pending: Result<Pending<Vec<u64>>, Error>| pending?.wait().map(drop);
        let nothing = Vec::new;
        refused("scatter", wait(world.iscatter(0, nothing(), count)))?;
        let none = &[0, 0];
        refused(
            "scatter_v",
            wait(world.iscatter_v(0, nothing(), none, count)),
        )?;
        let much = [0, count];
        refused("gather_v", wait(world.igather_v(0, nothing(), &much)))?;
        let much = [count, count];
        refused("all_gather_v", wait(world.iall_gather_v(nothing(), &much)))?;
        let mut much = [0; 2];
        much[there as usize] = count;
        let answer = wait(world.iall_to_all_v(nothing(), none, &much));
        refused("all_to_all_v", answer)?;
        // One member alone asks for too much: the others hear of it.
        let count = if world.rank() == 0 { count } else { 8 };
        check!(world.allocate::<u64>(count).is_err(), "{count}");
        world.barrier()?;
    }
    let nothing = vec![(); usize::MAX];
    let mut room = vec![(); usize::MAX];
    refused("all_to_all", world.all_to_all(&nothing, &mut room))?;
    Ok(world.barrier()?)
});

/// More than 2^32 elements and bytes: private memory of which only some pages are ever touched.
fn far_elements(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let there = 1 - world.rank();
    let count = (1_u64 << 32) + 4096;
    let data = world.register(vec![0_u8; count as usize])?;
    same!(data.len(), count);
    let mine = world.rank() as u8 + 1;
    let places = [
        0,
        (1 << 31) - 2,
        (1 << 31) - 1,
        (1 << 32) - 3,
        (1 << 32) + 5,
        count - 8,
    ];
    for first in places {
        data.put(there, first, &[mine; 8])?;
        data.fetch_add(there, first, 10)?;
    }
    let place = Strided {
        first: 100,
        count: 3,
        block: 2,
        stride: 1 << 31,
    };
    data.put_strided(there, place, &[50; 6])?;
    data.put_indexed(there, &[1 << 31 | 700, 1 << 32 | 700], &[60, 61])?;
    let pointer = data.pointer(there, 0)?.add(1 << 32 | 900);
    pgas.put(pointer, &[70])?;
    same!(
        pointer.distance_from(data.pointer(there, 0)?),
        Some(1 << 32 | 900)
    );
    check!(data.put(there, count - 1, &[0; 2]).is_err());
    world.barrier()?;
    let theirs = there as u8 + 1;
    for first in places {
        let mut found = [0; 8];
        data.read_local(first, &mut found)?;
        let mut expected = [theirs; 8];
        expected[0] += 10;
        if first == (1 << 31) - 2 {
            // The next place begins one element further on, and was written later.
            expected[1] += 10;
        }
        check!(found == expected, "{first}: {found:?}");
        data.get(there, first, &mut found)?;
        same!(found[0], mine + 10);
    }
    for (at, value) in [
        (100, 50),
        (1 << 31 | 101, 50),
        (1 << 32 | 101, 50),
        (1 << 31 | 700, 60),
        (1 << 32 | 700, 61),
        (1 << 32 | 900, 70),
    ] {
        same!(data.get_value(world.rank(), at)?, value);
    }
    Ok(data.free()?)
}

/// Whether so much memory can be had; reserving it costs nothing.
fn can_reserve(test: &str, bytes: usize) -> bool {
    let reserved = Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
    require(test, reserved, "it reserves 8 GiB of address space")
}

#[test]
fn far_elements_through_the_kernel() {
    let name = "faults::sizes::far_elements_through_the_kernel";
    if can_reserve(name, 8 << 30) {
        units(2).run(name, far_elements);
    }
}

#[test]
fn far_elements_by_messages() {
    let name = "faults::sizes::far_elements_by_messages";
    if can_reserve(name, 8 << 30) {
        units(2).mask(MESSAGES_ONLY).run(name, far_elements);
    }
}

#[test]
#[ignore = "needs 5 GiB of memory"]
fn far_elements_that_are_mapped() {
    let timeout = std::time::Duration::from_secs(300);
    let units = units(2).budget(6 << 30).timeout(timeout);
    units.run(
        "faults::sizes::far_elements_that_are_mapped",
        |fabric, _| {
            let pgas = &Pgas::new(fabric)?;
            let world = pgas.world();
            let there = 1 - world.rank();
            let count = (1_u64 << 31) + 4099;
            let data = world.allocate::<u8>(count)?;
            let long = vec![7_u8; (1 << 31) + 9];
            data.put(there, 4000, &long)?;
            drop(long);
            world.barrier()?;
            for (at, value) in [
                (3999, 0),
                (4000, 7),
                (1 << 31, 7),
                (4008 + (1 << 31), 7),
                (4009 + (1 << 31), 0),
            ] {
                same!(data.get_value(there, at)?, value);
            }
            same!(data.fetch_add(there, count - 1, 3)?, 0);
            Ok(data.free()?)
        },
    );
}
