//! Few bytes: one meeting, and they are in the slots.

use super::board::Board;
use crate::Elem;
use crate::collective::call::{Call, Failure};
use crate::collective::combining::Typed;
use crate::collective::op::Operator;
use crate::collective::shape::{Combine, Moves};
use crate::collective::{Input, Output};
use crate::team::Inner;
use smallvec::SmallVec;

pub(super) fn moves(
    (team, board): (&Inner, &Board),
    call: Call,
    moves: &Moves,
    input: &Input<'_>,
    mut output: Output<'_>,
) -> Result<(), Failure> {
    let (me, data) = (team.rank, input.bytes());
    let give = |to| {
        let (at, len) = moves.gives(me, to);
        &data[at as usize..][..len as usize]
    };
    let sequence = board.meet(team, &call, false, give)?;
    for from in 0..team.peers.len() as u32 {
        let take = moves.takes(me, from);
        if take.len == 0 {
            continue;
        }
        match from == me {
            true => output.write(take.at, give(me)),
            false => board.deliver(sequence, from, &mut output, take.at, take.len),
        }
    }
    Ok(())
}

pub(super) fn combines<T: Elem, O: Operator<T>>(
    (team, board): (&Inner, &Board),
    call: Call,
    (combine, bytes): (Combine, u64),
    typed: &Typed<T, O>,
    input: &Input<'_>,
    mut output: Output<'_>,
) -> Result<(), Failure> {
    let (me, data, bytes) = (team.rank, input.bytes(), bytes as usize);
    let give = |to: u32| match combine {
        Combine::ReduceScatter => &data[to as usize * bytes..][..bytes],
        _ => &data[..bytes],
    };
    let sequence = board.meet(team, &call, false, give)?;
    let ranks = match combine {
        _ if !combine.gives_to(me) => return Ok(()),
        Combine::Scan => 0..me + 1,
        Combine::ExScan => 0..me,
        _ => 0..team.peers.len() as u32,
    };
    // On the stack, unless they are many.
    let room = || SmallVec::<[u8; 128]>::from_elem(0, bytes);
    let (sum, more) = (&mut room()[..], &mut room()[..]);
    for rank in ranks {
        let with = match rank == me {
            true => give(me),
            false => {
                board.read(sequence, rank, more);
                &more[..]
            }
        };
        match rank {
            0 => sum.copy_from_slice(with),
            _ => typed.append_bytes(sum, with),
        }
    }
    output.write(0, sum);
    Ok(())
}
