//! Message passing: one unit writes data and says so, another one waits for that and reads.

use crate::litmus::{look_for, rounds};
use samite_fabric::Fabric;
use samite_pgas::{Pgas, Result, Segment};
use samite_testkit::{Outcome, same};

/// How a writer publishes and a reader waits: the round, the flags of the round, the reader.
pub(super) struct Passing<'a> {
    pub(super) data: &'a Segment<u64>,
    pub(super) flags: &'a Segment<u64>,
    /// Where the data of this round lie.
    pub(super) home: u32,
    pub(super) at: u64,
    pub(super) reader: u32,
    pub(super) round: u64,
}

/// Elements of a message.
const LENGTH: u64 = 5;

/// Message passing: every unit writes in turn, to memory of every unit, and another one reads.
pub(super) fn pass(
    fabric: &Fabric,
    publish: impl Fn(&Pgas, &Passing<'_>, &[u64]) -> Result<()>,
    wait: impl Fn(&Pgas, &Passing<'_>) -> Result<()>,
) -> Outcome {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let rounds = rounds(fabric);
    let data = &world.allocate::<u64>(LENGTH * rounds)?;
    let flags = &world.allocate::<u64>(rounds)?;
    for round in 0..rounds {
        let size = u64::from(world.size());
        let writer = (round % size) as u32;
        let passing = Passing {
            data,
            flags,
            home: (round / size % size) as u32,
            at: LENGTH * round,
            reader: (writer + 1) % world.size(),
            round,
        };
        world.barrier()?;
        if world.rank() == writer {
            publish(pgas, &passing, &[round + 1; LENGTH as usize])?;
        } else if world.rank() == passing.reader {
            wait(pgas, &passing)?;
            let mut found = [0; LENGTH as usize];
            data.get(passing.home, passing.at, &mut found)?;
            same!(found, [round + 1; LENGTH as usize]);
        }
    }
    Ok(world.barrier()?)
}

/// The reader looks at a flag of its own by atomics.
pub(super) fn by_flag(_: &Pgas, passing: &Passing<'_>) -> Result<()> {
    let Passing {
        flags,
        reader,
        round,
        ..
    } = *passing;
    look_for(flags, reader, round, 1)
}

pub(super) fn raise(passing: &Passing<'_>) -> Result<()> {
    let Passing {
        flags,
        reader,
        round,
        ..
    } = *passing;
    flags.swap(reader, round, 1).map(drop)
}
