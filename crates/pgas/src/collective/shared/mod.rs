//! The link of members that map each other's memory: flags, and copies.
//!
//! | bytes per member | how |
//! |---|---|
//! | up to 4064, in large teams fewer, at least 96 | one meeting: the bytes are in the slots |
//! | more, of which one end is in symmetric memory | a meeting tells where; one copy, by the member that can access the other end; a meeting ends it |
//! | more, to be combined | the same: each member combines its share for all |
//! | more, between slices | piece by piece through staging memory, a meeting per piece |
//!
//! In bytes, per member of a team of P, for a vector or block of n bytes: an all-reduce in place
//! reads n and writes n; an all-to-all in place reads and writes P n; slices are copied once more
//! on each side. Measured with two members on two cores that copy 30 GB/s each (the best MPI
//! library beside them): all-reduce of 1 MiB 55 us (180), broadcast 13 us (59), all-to-all of 64
//! KiB 3.7 us (6.4). An all-to-all of 1 MiB takes 140 us (150): 4 MiB per core exceed the
//! second-level cache, and a plain memcpy is no faster.
//!
//! # Files
//! `board` (meetings) · `memory` (what outlives a call) · `few` (bytes in slots) · `flags` (a call
//! in its meetings; its steps are in [`super::schedule`])

mod board;
pub(super) mod few;
mod flags;
mod memory;

pub(crate) use board::{Block, Board};
pub(crate) use flags::Flags;
pub(crate) use memory::Pool;

use self::board::Exchange;
use super::Ends;
use super::call::{Call, Failure};
use super::combining::Combiner;
use super::shape::Shape;
use crate::job::Job;

/// Runs a blocking call of few bytes, without allocating. No other call is queued.
#[inline(always)]
pub(super) fn at_once<C: Combiner>(
    (job, board): (&Job, &Board),
    call: &Call,
    shape: &Shape,
    ends: &mut Ends<'_>,
    combiner: Option<&C>,
) -> Result<(), Failure> {
    let sequence = board.post(call, false, few::give(shape, board.rank, &ends.input))?;
    let is_here = board.spin(sequence);
    let mut exchange = Exchange::new(sequence, false);
    if !is_here || !board.look(job, call, &mut exchange)? {
        board.wait(job, call, &mut exchange)?;
    }
    let here = (board.rank, board.size());
    let ends = (&ends.input, &mut ends.output);
    few::finish(shape, here, &(board, sequence), ends, combiner);
    Ok(())
}
