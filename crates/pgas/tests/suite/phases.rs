//! Phases of a segment: references while nobody else writes, on every transport.

use samite_pgas::{Error, GlobalPtr, Local, Pgas};
use samite_testkit::everywhere;

everywhere!(
    a_part_belongs_to_its_owner_and_comes_back,
    3,
    |fabric, _| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let (rank, size) = (world.rank(), world.size());
        let mut segment = world.allocate::<u64>(1000)?;
        for round in 0..5 {
            segment.put_implicit((rank + 1) % size, 0, &[u64::from(rank) + round])?;
            let pointer = segment.pointer((rank + 1) % size, 0)?;
            let mut local = segment.into_local()?;
            let left = (rank + size - 1) % size;
            assert_eq!(
                local.as_slice()[0],
                u64::from(left) + round,
                "what was put is there"
            );
            assert!(
                pgas.put(pointer, &[0]).is_err(),
                "nobody reaches the parts of others"
            );
            world.barrier()?;
            for (index, value) in local.as_mut_slice().iter_mut().enumerate() {
                *value = u64::from(rank) * 1_000_000 + index as u64 + round;
            }
            let reading = match round % 2 {
                0 => local.into_read_only()?,
                _ => local.into_shared()?.into_read_only()?,
            };
            for other in 0..size {
                let expected = |index: u64| u64::from(other) * 1_000_000 + index + round;
                let mut copy = [0; 10];
                reading.get(other, 990, &mut copy)?;
                assert_eq!(copy[9], expected(999));
                if let Some(slice) = reading.slice(other)? {
                    assert_eq!(slice.len(), 1000);
                    assert!(
                        slice
                            .iter()
                            .zip(0..)
                            .all(|(value, index)| *value == expected(index))
                    );
                }
            }
            assert_eq!(reading.as_slice().len(), 1000);
            assert!(matches!(
                reading.get(0, 995, &mut [0; 6]),
                Err(Error::OutOfRange { .. })
            ));
            let pointer = reading.pointer(0, 5)?;
            let mut one = [0];
            pgas.get(pointer, &mut one)?;
            assert_eq!(one, [5 + round], "a pointer reads");
            assert!(pgas.put(pointer, &[0]).is_err(), "and does not write");
            // The pointer attached this unit to the part of rank 0.
            segment = match round {
                4 => reading.into_local()?.into_shared()?,
                _ => reading.into_shared()?,
            };
            assert_eq!(segment.get_value(0, 5)?, 5 + round);
            world.barrier()?;
        }
        Ok(segment.free()?)
    }
);

everywhere!(
    nothing_and_the_registered_have_their_own_rules,
    2,
    |fabric, _| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let mut empty = world.allocate::<f64>(0)?.into_local()?;
        assert!(empty.as_mut_slice().is_empty());
        empty.into_shared()?.free()?;
        let mine = vec![u16::try_from(world.rank())?; 3 + world.rank() as usize];
        let registered = world.register(mine)?;
        let there = 1 - world.rank();
        assert_eq!(registered.len_of(there)?, 3 + u64::from(there));
        assert_eq!(registered.get_value(there, 2)?, there as u16);
        registered.fetch_add(there, 2, 10)?;
        world.barrier()?;
        let mut back = vec![0; registered.len() as usize];
        registered.read_local(0, &mut back)?;
        assert_eq!(back[2], world.rank() as u16 + 10);
        let own = pgas.register(vec![1.5f32 * (1 + world.rank()) as f32; 10])?;
        let mut pointers = [0; 2];
        world.all_gather(&[own.to_bits()][..], &mut pointers[..])?;
        let theirs = GlobalPtr::<f32>::from_bits(pointers[there as usize]);
        let mut got = [0.0; 2];
        pgas.get(theirs.add(8), &mut got)?;
        assert_eq!(got, [1.5 * (1 + there) as f32; 2]);
        pgas.put(theirs.add(9), &[7.0])?;
        assert!(
            pgas.put(theirs.add(9), &[7.0, 8.0]).is_err(),
            "beyond its end"
        );
        world.barrier()?;
        assert!(matches!(
            pgas.unregister(theirs, 1),
            Err(Error::BadPointer { .. })
        ));
        let back = pgas.unregister(own, 10)?;
        assert_eq!(back[8..], [1.5 * (1 + world.rank()) as f32, 7.0]);
        world.barrier()?;
        assert!(matches!(
            pgas.get(theirs, &mut got),
            Err(Error::BadPointer { .. })
        ));
        world.barrier()?;
        assert_eq!(registered.into_local().err(), Some(Error::AlwaysShared));
        Ok(world.barrier()?)
    }
);

#[test]
fn who_is_still_attached_keeps_the_phase_from_changing() {
    use samite_fabric::{Config, Fabric, Identity};
    let fabric = Fabric::alone(Identity::by_hand("phases"), Config::default()).expect("a domain");
    let pgas = Pgas::new(&fabric).expect("a job of one");
    let segment = pgas.world().allocate::<u8>(64).expect("memory");
    let number = u32::from(segment.pointer(0, 0).expect("a pointer").segment());
    let key = fabric
        .look_up(fabric.me(), number)
        .expect("here")
        .expect("offered");
    let attached = fabric.attach(key).expect("it is open");
    let unturned = segment.turn::<Local>().expect_err("somebody is attached");
    let users = samite_fabric::Error::InUse {
        segment: number,
        users: vec![fabric.me().into()],
    };
    let (segment, error) = unturned.into_parts();
    assert_eq!(error, Error::Fabric(users));
    attached.put(3, &[1]).expect("the segment is as it was");
    drop(attached);
    let local = segment.expect("it comes back").into_local();
    assert_eq!(
        local.expect("nobody is attached").as_slice()[..4],
        [0, 0, 0, 1]
    );
}
