//! Collectives of members that map each other's memory.
//!
//! | bytes per member | how |
//! |---|---|
//! | up to 4064, in large teams fewer, at least 96 | one meeting: the bytes are in the slots |
//! | more, of which one end is in symmetric memory | a meeting tells where; one copy, by whoever reaches the other end; a meeting ends it |
//! | more, to be combined | the same: everybody combines its share for all |
//! | more, between slices | piece by piece through staging memory, a meeting per piece |
//!
//! In bytes, per member of a team of P, for a vector or block of n bytes: an all-reduce in place reads n and
//! writes n; an all-to-all in place reads and writes P n; slices are copied once more on each side. Measured
//! with two members on two cores that copy 30 GB/s each (the best MPI library beside them): all-reduce of
//! 1 MiB 55 us (180), broadcast 13 us (59), all-to-all of 64 KiB 3.7 us (6.4). An all-to-all of 1 MiB takes
//! 140 us (150): with 4 MiB per core the second-level cache is left, and a plain memcpy is no faster.
//!
//! Pieces alternate between two halves of the staging memory. A member fills one half while others still
//! read the other: before it fills a half for the second time it has met everybody, who met after reading.
//!
//! # Files
//! `board` (meetings), `memory` (where its words lie) · `few` (bytes in slots) · `entry` (the first meeting of a call: who can reach what)
//! · `staging` (pieces) · `blocks` (bytes that only move; reduce-scatter) · `columns` (other reductions)

mod blocks;
mod board;
mod columns;
mod entry;
mod few;
mod memory;
mod staging;

pub(crate) use board::Board;
pub(crate) use memory::Blocks;
pub(crate) use staging::Staging;

use board::Unwinding;
use staging::Stage;

use super::call::{Call, Failure};
use super::combining::Typed;
use super::op::Operator;
use super::shape::{Combine, Moves};
use super::{Input, Output};
use crate::Elem;
use crate::team::Inner;

/// A collective that only moves bytes.
pub(super) fn moves(
    place: (&Inner, &Board),
    call: Call,
    moves: &Moves,
    input: &Input<'_>,
    mut output: Output<'_>,
) -> Result<(), Failure> {
    match moves.known_longest() {
        Some(longest) if longest <= place.1.payload() => {
            few::moves(place, call, moves, input, output)
        }
        _ => blocks::moves((place, &Stage::new(place)), call, moves, input, &mut output),
    }
}

/// A collective that combines `bytes` of elements.
pub(super) fn combines<T: Elem, O: Operator<T>>(
    place: (&Inner, &Board),
    call: Call,
    (combine, bytes): (Combine, u64),
    typed: &Typed<T, O>,
    input: &Input<'_>,
    mut output: Output<'_>,
) -> Result<(), Failure> {
    if bytes <= place.1.payload() {
        return few::combines(place, call, (combine, bytes), typed, input, output);
    }
    // Given back after what `unwinding` does.
    let stage = Stage::new(place);
    let unwinding = Unwinding::guard(place);
    let done = match combine {
        Combine::ReduceScatter => {
            let block = |to: u32| (u64::from(to) * bytes, bytes);
            blocks::combines((place, &stage), call, &block, typed, input, &mut output)
        }
        _ => columns::combines(
            (place, &stage),
            call,
            (combine, bytes),
            typed,
            input,
            output,
        ),
    };
    unwinding.ended();
    done
}
