//! The first meeting of a call with many bytes: everybody tells everybody where its memory is, so that
//! all know alike who can reach what.

use super::board::{Board, PAYLOAD_MIN};
use super::staging::Staging;
use crate::collective::call::{Call, Failure};
use crate::collective::shape::Take;
use crate::collective::{Input, Output};
use crate::team::Inner;
use crate::{Error, GlobalPtr, Result};
use samite_mem::SharedBytes;

/// What a member tells another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Told {
    /// Where its bytes are: what it gives, or its staging memory.
    input: [u64; 2],
    /// Where its result goes: its target, or its staging memory.
    output: [u64; 2],
    /// Which part of what it gives is for the other one.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Where in its target the part from the other one goes.
    pub(super) at: u64,
    /// How long it expects that part to be.
    pub(super) expected: u64,
    /// The longest block that it gives to another member.
    pub(super) longest: u64,
    /// Where what it gives is in its process.
    pub(super) address: u64,
    flags: u64,
}

/// What it gives can be read in place.
const INPUT: u64 = 1;
/// Its target can be written in place.
const OUTPUT: u64 = 2;
/// It gets something.
const TAKES: u64 = 4;
/// Its first piece is in its staging memory.
const STAGED: u64 = 8;
/// It reads what others give out of their private memory.
const READS: u64 = 16;

fn words(pointer: GlobalPtr<u8>) -> [u64; 2] {
    let bits = pointer.to_bits();
    [bits as u64, (bits >> 64) as u64]
}

fn pointer(words: [u64; 2]) -> GlobalPtr<u8> {
    GlobalPtr::from_bits(u128::from(words[0]) | u128::from(words[1]) << 64)
}

impl Told {
    /// Of a member that gives blocks of up to `longest` bytes to others; `takes`: it gets something.
    pub(super) fn new(
        input: &Input<'_>,
        output: &Output<'_>,
        staging: Option<&Staging>,
        longest: u64,
        takes: bool,
    ) -> Told {
        let staging = staging.map_or(GlobalPtr::NULL, |staging| staging.pointer);
        let (from, into) = (input.pointer(), output.pointer());
        let flag = |set, flag| if set { flag } else { 0 };
        Told {
            input: words(from.unwrap_or(staging)),
            output: words(into.unwrap_or(staging)),
            offset: 0,
            len: 0,
            at: 0,
            expected: 0,
            longest,
            address: input.address(),
            flags: flag(from.is_some(), INPUT) | flag(into.is_some(), OUTPUT) | flag(takes, TAKES),
        }
    }

    /// With the first piece staged.
    pub(super) fn staged(self) -> Told {
        Told {
            flags: self.flags | STAGED,
            ..self
        }
    }

    /// Of one that reads private memory.
    pub(super) fn reading(self, reads: bool) -> Told {
        match reads {
            true => Told {
                flags: self.flags | READS,
                ..self
            },
            false => self,
        }
    }

    /// With what is for one member: the part that it gives to it, and where what it gets from it goes.
    pub(super) fn block(self, (offset, len): (u64, u64), take: Take) -> Told {
        Told {
            offset,
            len,
            at: take.at,
            expected: take.len,
            ..self
        }
    }

    pub(super) fn input_in_place(&self) -> bool {
        self.flags & INPUT != 0
    }

    pub(super) fn output_in_place(&self) -> bool {
        self.flags & OUTPUT != 0
    }

    pub(super) fn takes(&self) -> bool {
        self.flags & TAKES != 0
    }

    pub(super) fn is_staged(&self) -> bool {
        self.flags & STAGED != 0
    }

    pub(super) fn reads(&self) -> bool {
        self.flags & READS != 0
    }

    /// The first `bytes` of what the member gives, or of its staging memory.
    pub(super) fn input(&self, team: &Inner, bytes: u64) -> Result<SharedBytes, Failure> {
        map(team, pointer(self.input), bytes)
    }

    /// The first `bytes` of its target, or of its staging memory.
    pub(super) fn output(&self, team: &Inner, bytes: u64) -> Result<SharedBytes, Failure> {
        map(team, pointer(self.output), bytes)
    }
}

fn map(team: &Inner, pointer: GlobalPtr<u8>, bytes: u64) -> Result<SharedBytes, Failure> {
    let mapped = match team.job.mapped(pointer, bytes) {
        // It has died since it told where its memory is.
        Err(Error::Fabric(error)) => return Err(Failure::of(error, team)),
        mapped => mapped?,
    };
    mapped.ok_or_else(|| crate::job::bad(pointer).into())
}

/// It fits into every slot.
const _: () = assert!(size_of::<Told>() <= PAYLOAD_MIN);

/// A system call costs more than copying fewer bytes twice.
const PRIVATE_MIN: u64 = 16 << 10;

/// Whether this member should read so many bytes of the other one out of its private memory. Of several
/// members, which read the same pages at the same time, the kernel lets one in after the other.
pub(super) fn reads_private(team: &Inner, bytes: u64) -> bool {
    let [first, second] = team.peers[..] else {
        return false;
    };
    let other = if team.rank == 0 { second } else { first };
    let fabric = &team.job.fabric;
    bytes >= PRIVATE_MIN && fabric.reads_private(other, bytes).is_some()
}

/// The meeting: what everybody told this member, by rank. `tell`: what is for a rank.
pub(super) fn meet(
    (team, board): (&Inner, &Board),
    call: &Call,
    tell: impl Fn(u32) -> Told,
) -> Result<Vec<Told>, Failure> {
    let size = team.peers.len() as u32;
    let telling: Vec<Told> = (0..size).map(tell).collect();
    let give = |to: u32| bytemuck::bytes_of(&telling[to as usize]);
    let sequence = board.meet(team, call, true, give)?;
    let mut told = telling.clone();
    for from in (0..size).filter(|from| *from != team.rank) {
        let told = bytemuck::bytes_of_mut(&mut told[from as usize]);
        board.read(sequence, from, told);
    }
    Ok(told)
}
