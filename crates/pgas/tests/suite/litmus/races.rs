//! What a race means.

use crate::litmus::rounds;
use samite_pgas::{Elem, Pgas, Result};
use samite_testkit::{Outcome, check, everywhere, same};

everywhere!(a_race_stays_where_it_is, 3, |fabric, _| {
    // All units write the middle at once, and read it: any bytes. Around it nothing changes.
    const MIDDLE: std::ops::Range<usize> = 1000..3000;
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u16>(4000)?;
    let mine = vec![world.rank() as u16 + 1; 4000];
    if world.rank() == 0 {
        data.put(0, 0, &[9; 4000])?;
    }
    world.barrier()?;
    let mut found = vec![0; 4000];
    for _ in 0..rounds(fabric) / 10 + 1 {
        data.put(0, MIDDLE.start as u64, &mine[MIDDLE])?;
        data.get(0, 0, &mut found)?;
        check!(
            found[..MIDDLE.start]
                .iter()
                .chain(&found[MIDDLE.end..])
                .all(|value| *value == 9)
        );
    }
    world.barrier()?;
    // And it ends with the race: from here on there is one writer.
    if world.rank() == 1 {
        data.put(0, 0, &mine)?;
    }
    world.barrier()?;
    data.get(0, 0, &mut found)?;
    same!(found, [2; 4000]);
    Ok(world.barrier()?)
});

/// Two units write values of equal bytes to one element without any order, and all read it.
fn whole<T: Elem>(pgas: &Pgas, rounds: u64, of: impl Fn(u8) -> T) -> Outcome {
    let world = pgas.world();
    let data = world.allocate::<T>(3)?;
    let pointer = data.pointer(2, 1)?;
    let is_whole = |value: T, how: &str| -> Outcome {
        let bytes = bytemuck::bytes_of(&value);
        let first = bytes[0];
        check!(bytes.iter().all(|byte| *byte == first), "{how}: {bytes:x?}");
        Ok(())
    };
    for round in 0..rounds {
        // Of one unit the odd ones, of the other the even ones.
        let value = of((2 * (round % 100)) as u8 + world.rank() as u8);
        let mut found = [T::zeroed()];
        match world.rank() {
            0 => data.put_value(2, 1, value)?,
            1 => pgas.put(pointer, &[value])?,
            _ => {
                data.read_local(1, &mut found)?;
                is_whole(found[0], "read_local")?;
            }
        }
        is_whole(data.get_value(2, 1)?, "get_value")?;
        pgas.get(pointer, &mut found)?;
        is_whole(found[0], "get")?;
    }
    world.barrier()?;
    // Neighbours are as they were.
    let around: Result<Vec<T>> = [0, 2].iter().map(|at| data.get_value(2, *at)).collect();
    for value in around? {
        check!(bytemuck::bytes_of(&value).iter().all(|byte| *byte == 0));
    }
    Ok(world.barrier()?)
}

everywhere!(a_value_is_never_torn, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let rounds = 20 * rounds(fabric);
    whole::<u8>(pgas, rounds, |byte| byte)?;
    whole::<u16>(pgas, rounds, |byte| u16::from_ne_bytes([byte; 2]))?;
    whole::<[u8; 2]>(pgas, rounds, |byte| [byte; 2])?;
    whole::<f32>(pgas, rounds, |byte| f32::from_ne_bytes([byte; 4]))?;
    whole::<[u16; 2]>(pgas, rounds, |byte| [u16::from_ne_bytes([byte; 2]); 2])?;
    whole::<u64>(pgas, rounds, |byte| u64::from_ne_bytes([byte; 8]))?;
    whole::<[u32; 2]>(pgas, rounds, |byte| [u32::from_ne_bytes([byte; 4]); 2])
});
