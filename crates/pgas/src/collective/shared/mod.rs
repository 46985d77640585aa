//! Collectives of members that map each other's memory.
//!
//! | bytes per member | how |
//! |---|---|
//! | up to 96 | one meeting: the bytes are in the slots |
//! | more, in parts of symmetric memory | a meeting tells where; everybody reads what it gets from where it lies, or combines its share of all and writes it to where it belongs; a meeting ends it |
//! | more, in slices | the same, piece by piece through staging memory, a meeting per piece |
//!
//! Pieces alternate between two halves of the staging memory. A member fills one half while others still
//! read the other: before it fills a half for the second time it has met everybody, who met after reading.
//!
//! # Files
//! `board` (meetings) · `few` (bytes in slots) · `entry` (who can reach what; staging) · `pull` (everybody
//! takes its own) · `columns` (everybody combines its share for all)

mod board;
mod columns;
mod entry;
mod few;
mod pull;

pub(crate) use board::Board;
pub(crate) use entry::Staging;

use super::call::{Call, Failure};
use super::combining::Typed;
use super::op::Operator;
use super::shape::{Combine, Moves};
use super::{Input, Output};
use crate::Elem;
use crate::team::Inner;

/// A collective that only moves bytes.
pub(super) fn moves(
    (team, board): (&Inner<'_>, &Board),
    call: Call,
    moves: &Moves,
    input: &Input<'_>,
    output: Output<'_>,
) -> Result<(), Failure> {
    match moves.known_longest() {
        Some(longest) if longest <= board::PAYLOAD as u64 => {
            few::moves((team, board), call, moves, input, output)
        }
        _ => pull::moves((team, board), call, moves, input, output),
    }
}

/// A collective that combines `bytes` of elements.
pub(super) fn combines<T: Elem, O: Operator<T>>(
    (team, board): (&Inner<'_>, &Board),
    call: Call,
    (combine, bytes): (Combine, u64),
    typed: &Typed<T, O>,
    input: &Input<'_>,
    output: Output<'_>,
) -> Result<(), Failure> {
    let place = (team, board);
    if bytes <= board::PAYLOAD as u64 {
        return few::combines(place, call, (combine, bytes), typed, input, output);
    }
    match combine {
        Combine::ReduceScatter => {
            let block = |to: u32| (u64::from(to) * bytes, bytes);
            pull::combines(place, call, (&block, true), typed, input, output)
        }
        // Two members: to compute all of it twice costs less than to write half of it to the other.
        Combine::AllReduce if team.peers.len() == 2 => {
            pull::combines(place, call, (&|_| (0, bytes), false), typed, input, output)
        }
        _ => columns::combines(place, call, (combine, bytes), typed, input, output),
    }
}
