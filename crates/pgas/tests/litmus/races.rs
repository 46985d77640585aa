//! What a race means.

use crate::rounds;
use samite_pgas::Pgas;
use samite_testkit::{check, everywhere, same};

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
