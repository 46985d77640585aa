//! Zero elements, elements of zero bytes, blocks of nothing, teams of nobody.

use samite_pgas::{Group, Location, Pgas, Strided, Sum, Update};
use samite_testkit::{check, everywhere, same};

everywhere!(nothing_at_all, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let there = 1 - world.rank();
    // No elements.
    let none = world.allocate::<u64>(0)?;
    check!(none.is_empty());
    none.put(there, 0, &[])?;
    none.get(there, 0, &mut [])?;
    none.put_indexed(there, &[], &[])?;
    none.accumulate(there, 0, &[], Update::Sum)?;
    none.updates(Update::Max).finish()?;
    none.get_scattered(&[], &mut [])?;
    check!(none.put_value(there, 0, 1).is_err());
    check!(none.load(there, 0).is_err());
    let pointer = none.pointer(there, 0)?;
    pgas.put(pointer, &[])?;
    let none = none.into_local()?;
    check!(none.as_slice().is_empty());
    let none = none.into_read_only()?;
    check!(none.as_slice().is_empty());
    none.into_shared()?.free()?;
    world.register(Vec::<u32>::new())?.free()?;
    // Elements of no bytes: there can be many.
    let empty = world.allocate::<()>(1 << 40)?;
    same!(empty.len(), 1 << 40);
    empty.put(there, 5, &[(); 9])?;
    empty.put_value(there, (1 << 40) - 1, ())?;
    empty.get(there, 0, &mut [(); 3])?;
    empty.put_nb(there, 0, &[(); 3])?.wait()?;
    let place = Location {
        rank: there,
        index: 7,
    };
    empty.get_scattered(&[place], &mut [()])?;
    same!(empty.get_nb(there, 0, 4)?.wait()?.len(), 4);
    empty.free()?;
    world.allocate::<[u64; 0]>(3)?.free()?;
    // No blocks, and blocks of nothing.
    let data = world.allocate::<u64>(4)?;
    for (count, block) in [(0, 3), (3, 0), (0, 0)] {
        let place = Strided {
            first: 4,
            count,
            block,
            stride: 0,
        };
        data.put_strided(there, place, &[])?;
        data.get_strided(there, place, &mut [])?;
    }
    // Nobody, and somebody alone.
    check!(world.create(&Group::new())?.is_none());
    check!(Group::new().split(3).iter().all(Group::is_empty));
    check!(Group::first(2).split(0).is_empty());
    let alone = world.split_by(u64::from(world.rank()))?;
    same!(alone.size(), 1);
    alone.barrier()?;
    alone.all_gather(&[5_u8], &mut [0_u8])?;
    drop(alone.lock()?.acquire()?);
    // Collectives and locks of nothing.
    world.broadcast(1, &mut [0_u64; 0])?;
    world.all_reduce(&[0_u64; 0], &mut [0_u64; 0], Sum)?;
    world.all_to_all(&[(); 2], &mut [(); 2])?;
    let nothing = world.global_lock(())?;
    *nothing.acquire()? = ();
    nothing.free()?;
    // Memory of one unit: a pointer of its own, even so.
    let (one, other) = (pgas.allocate::<u64>(0)?, pgas.allocate::<()>(7)?);
    check!(one.offset() != other.offset());
    pgas.put(one, &[])?;
    pgas.get(other, &mut [(); 7])?;
    pgas.free(one)?;
    pgas.free(other)?;
    pgas.flush_all()?;
    Ok(world.barrier()?)
});
