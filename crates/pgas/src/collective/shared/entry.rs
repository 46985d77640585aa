//! The first meeting of a call with many bytes: who can reach what, and where.

use super::board::Board;
use crate::collective::call::{Call, Failure};
use crate::collective::{Input, Output};
use crate::team::Inner;
use crate::{GlobalPtr, Result};
use samite_mem::SharedBytes;

/// Memory of this unit that slices go through, for all its teams: one call uses it at a time, and a call
/// ends when nobody reads it any more.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(super) pointer: GlobalPtr<u8>,
    pub(super) bytes: SharedBytes,
}

/// Bytes of the staging memory, unless elements are larger: it stays in the second-level cache.
pub(super) const STAGING: u64 = 1 << 20;

/// Staging memory of at least so many bytes.
pub(super) fn staging(team: &Inner<'_>, bytes: u64) -> Result<Staging> {
    let job = &team.job;
    let mut kept = job.collectives.staging.borrow_mut();
    if let Some(staging) = kept.as_ref().filter(|kept| kept.bytes.len() >= bytes) {
        return Ok(Staging {
            pointer: staging.pointer,
            bytes: staging.bytes.clone(),
        });
    }
    if let Some(small) = kept.take() {
        job.free(small.pointer)?;
    }
    let pointer = job.allocate::<u8>(bytes.max(STAGING))?;
    let Some(mapped) = job.mapped(pointer, bytes.max(STAGING))? else {
        // Own memory is mapped; and there is no board where it is not.
        return Err(crate::job::bad(pointer));
    };
    let made = || Staging {
        pointer,
        bytes: mapped.clone(),
    };
    *kept = Some(made());
    Ok(made())
}

/// What a member tells another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Told {
    /// Where its bytes are: what it gives, or its staging memory.
    input: [u64; 2],
    /// Where its result goes: its target, or its staging memory.
    output: [u64; 2],
    /// What of it is for the other one: offset and length.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The longest block that goes through its staging memory.
    pub(super) longest: u64,
    flags: u64,
}

const INPUT_IN_PLACE: u64 = 1;
const OUTPUT_IN_PLACE: u64 = 2;

fn words(pointer: GlobalPtr<u8>) -> [u64; 2] {
    let bits = pointer.to_bits();
    [bits as u64, (bits >> 64) as u64]
}

fn pointer(words: [u64; 2]) -> GlobalPtr<u8> {
    GlobalPtr::from_bits(u128::from(words[0]) | u128::from(words[1]) << 64)
}

impl Told {
    pub(super) fn new(
        input: &Input<'_>,
        output: &Output<'_>,
        staging: Option<&Staging>,
        longest: u64,
    ) -> Told {
        let staging = staging.map_or(GlobalPtr::NULL, |staging| staging.pointer);
        let (from, into) = (input.pointer(), output.pointer());
        let in_place = |pointer: Option<_>, flag| if pointer.is_some() { flag } else { 0 };
        Told {
            input: words(from.unwrap_or(staging)),
            output: words(into.unwrap_or(staging)),
            offset: 0,
            len: 0,
            longest: if from.is_some() { 0 } else { longest },
            flags: in_place(from, INPUT_IN_PLACE) | in_place(into, OUTPUT_IN_PLACE),
        }
    }

    /// With what of it is for somebody.
    pub(super) fn block(self, (offset, len): (u64, u64)) -> Told {
        Told {
            offset,
            len,
            ..self
        }
    }

    pub(super) fn input_in_place(&self) -> bool {
        self.flags & INPUT_IN_PLACE != 0
    }

    pub(super) fn output_in_place(&self) -> bool {
        self.flags & OUTPUT_IN_PLACE != 0
    }

    /// The first `bytes` of what the member gives, or of its staging memory.
    pub(super) fn input(&self, team: &Inner<'_>, bytes: u64) -> Result<SharedBytes, Failure> {
        map(team, pointer(self.input), bytes)
    }

    /// The first `bytes` of its target, or of its staging memory.
    pub(super) fn output(&self, team: &Inner<'_>, bytes: u64) -> Result<SharedBytes, Failure> {
        map(team, pointer(self.output), bytes)
    }
}

fn map(team: &Inner<'_>, pointer: GlobalPtr<u8>, bytes: u64) -> Result<SharedBytes, Failure> {
    let mapped = team.job.mapped(pointer, bytes)?;
    mapped.ok_or_else(|| crate::job::bad(pointer).into())
}

/// The meeting: what everybody told this member, by rank. `tell`: what is for a rank.
pub(super) fn meet(
    (team, board): (&Inner<'_>, &Board),
    call: &Call,
    tell: impl Fn(u32) -> Told,
) -> Result<Vec<Told>, Failure> {
    let size = team.peers.len() as u32;
    let telling: Vec<Told> = (0..size).map(tell).collect();
    let give = |to: u32| bytemuck::bytes_of(&telling[to as usize]);
    let sequence = board.meet(team, call, true, give)?;
    let mut told = telling.clone();
    for from in (0..size).filter(|from| *from != team.rank) {
        board.read(
            sequence,
            from,
            bytemuck::bytes_of_mut(&mut told[from as usize]),
        );
    }
    Ok(told)
}
