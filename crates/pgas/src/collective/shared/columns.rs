//! Many bytes that are combined: everybody combines its share of the vector for all who get a result,
//! reading from where the vectors lie and writing to where the results belong, or through the staging
//! memory.
//!
//! ```text
//!            rank 0  rank 1  rank 2          staging memory: two halves in, two halves out
//!   input    ======  ======  ======
//!   share of rank 1:  |##|  reads all three, writes all three results
//! ```
//! Each vector is read once by one member in all, and each result written once: with P members on P cores
//! each moves 2 vectors, whatever P is. A piece needs one meeting: while the results of a piece are still
//! being made, everybody fetches those of the piece before.

use super::board::Board;
use super::entry::{Told, meet};
use super::staging::{STAGING, Stage, Staging};
use crate::Elem;
use crate::collective::call::{Call, Failure};
use crate::collective::combining::Typed;
use crate::collective::op::Operator;
use crate::collective::schedule::shares;
use crate::collective::shape::Combine;
use crate::collective::{Input, Output};
use crate::team::Inner;
use samite_mem::SharedBytes;

/// A member's memory for this call.
struct Member {
    input: SharedBytes,
    input_in_place: bool,
    /// `None` if it gets nothing.
    output: Option<SharedBytes>,
    output_in_place: bool,
}

struct Columns<'t, 'c, T, O> {
    team: &'t Inner,
    board: &'t Board,
    call: Call,
    combine: Combine,
    typed: &'c Typed<T, O>,
    element: u64,
    bytes: u64,
    /// Bytes of a piece, and of a quarter of the staging memory.
    piece: u64,
    quarter: u64,
    staging: Option<Staging>,
    /// By rank; `None` for the member itself.
    members: Vec<Option<Member>>,
}

pub(super) fn combines<T: Elem, O: Operator<T>>(
    ((team, board), stage): ((&Inner, &Board), &Stage<'_>),
    call: Call,
    (combine, bytes): (Combine, u64),
    typed: &Typed<T, O>,
    input: &Input<'_>,
    mut output: Output<'_>,
) -> Result<(), Failure> {
    let element = size_of::<T>() as u64;
    let quarter = (STAGING / 4).max(element);
    let mut columns = Columns {
        team,
        board,
        call,
        combine,
        typed,
        element,
        bytes,
        piece: quarter / element * element,
        quarter,
        staging: None,
        members: Vec::new(),
    };
    let gets = combine.gives_to(team.rank);
    if input.pointer().is_none() || (gets && output.pointer().is_none()) {
        match stage.take(4 * quarter) {
            Ok(staging) => columns.staging = Some(staging),
            Err(error) => return Err(board.refuse(team, &call, error.into())),
        }
    }
    columns.stage(input, 0);
    let own = Told::new(input, &output, columns.staging.as_ref(), 0, gets);
    let told = meet((team, board), &call, |_| own)?;
    columns.find(&told)?;
    let in_place = |(rank, told): (u32, &Told)| {
        told.input_in_place() && (told.output_in_place() || !combine.gives_to(rank))
    };
    if (0..).zip(&told).all(in_place) {
        columns.piece = bytes;
    }
    columns.run(input, &mut output)
}

impl<T: Elem, O: Operator<T>> Columns<'_, '_, T, O> {
    /// Maps what the others told.
    fn find(&mut self, told: &[Told]) -> Result<(), Failure> {
        let (team, combine) = (self.team, self.combine);
        let length = |in_place: bool| {
            if in_place {
                self.bytes
            } else {
                4 * self.quarter
            }
        };
        let member = |rank: u32, told: &Told| {
            if rank == team.rank {
                return Ok(None);
            }
            let (input_in_place, output_in_place) = (told.input_in_place(), told.output_in_place());
            let output = || told.output(team, length(output_in_place));
            let output = combine.gives_to(rank).then(output).transpose()?;
            Ok(Some(Member {
                input: told.input(team, length(input_in_place))?,
                input_in_place,
                output,
                output_in_place,
            }))
        };
        let members = (0..).zip(told).map(|(rank, told)| member(rank, told));
        match members.collect() {
            Ok(members) => self.members = members,
            // The others hear of it when they meet next.
            Err(failure) => return Err(self.board.refuse(team, &self.call, failure)),
        }
        Ok(())
    }

    /// Fills a quarter of the staging memory with the piece of a round.
    fn stage(&self, input: &Input<'_>, round: u64) {
        if let Some(staging) = &self.staging
            && input.pointer().is_none()
        {
            let start = round * self.piece;
            let len = self.piece.min(self.bytes - start);
            let at = (round & 1) * self.quarter;
            input.copy_to(start, &staging.bytes, at, len);
        }
    }

    fn run(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), Failure> {
        let rounds = self.bytes.div_ceil(self.piece);
        for round in 0..rounds {
            if round > 0 {
                self.stage(input, round);
                self.board.meet(self.team, &self.call, true, |_| &[])?;
                self.fetch(output, round - 1);
            }
            self.make(input, output, round);
        }
        self.board.meet(self.team, &self.call, false, |_| &[])?;
        self.fetch(output, rounds - 1);
        Ok(())
    }

    /// The share of a rank in the piece of a round: where it begins in the vector, and its length.
    fn share(&self, round: u64, rank: u32) -> (u64, u64) {
        let start = round * self.piece;
        let len = self.piece.min(self.bytes - start);
        // Whole lines, so that two members do not write into one.
        let grain = match self.element < 64 && 64 % self.element == 0 {
            true => 64,
            false => self.element,
        };
        let whole = len.next_multiple_of(grain);
        let (at, share) = shares(whole, grain, self.team.peers.len() as u32)(rank);
        let at = at.min(len);
        (start + at, share.min(len - at))
    }

    /// Combines this member's share for everybody.
    fn make(&self, input: &Input<'_>, output: &mut Output<'_>, round: u64) {
        let (me, size) = (self.team.rank, self.team.peers.len() as u32);
        let (start, len) = self.share(round, me);
        let (mut sum, mut more) = (self.typed.scratch(), self.typed.scratch());
        let step = sum.len() as u64 * self.element;
        let mut at = start;
        while at < start + len {
            let bytes = step.min(start + len - at);
            let count = (bytes / self.element) as usize;
            for rank in 0..size {
                if self.combine == Combine::ExScan && rank > 0 {
                    self.give(output, (rank, round), at, crate::bytes_of(&sum[..count]));
                }
                let with = if rank == 0 { &mut sum } else { &mut more };
                let with = crate::bytes_of_mut(&mut with[..count]);
                self.read(input, (rank, round), at, with);
                if rank > 0 {
                    self.typed.append(&mut sum[..count], &more[..count]);
                }
                if self.combine == Combine::Scan {
                    self.give(output, (rank, round), at, crate::bytes_of(&sum[..count]));
                }
            }
            if let Combine::AllReduce | Combine::Reduce { .. } = self.combine {
                for rank in (0..size).filter(|rank| self.combine.gives_to(*rank)) {
                    self.give(output, (rank, round), at, crate::bytes_of(&sum[..count]));
                }
            }
            at += bytes;
        }
    }

    fn read(&self, input: &Input<'_>, (rank, round): (u32, u64), at: u64, into: &mut [u8]) {
        match &self.members[rank as usize] {
            None => input.read(at, into),
            Some(member) if member.input_in_place => member.input.read(at, into),
            Some(member) => {
                let place = (round & 1) * self.quarter + at - round * self.piece;
                member.input.read(place, into);
            }
        }
    }

    fn give(&self, output: &mut Output<'_>, (rank, round): (u32, u64), at: u64, result: &[u8]) {
        match &self.members[rank as usize] {
            None => output.write(at, result),
            Some(Member {
                output: Some(there),
                output_in_place,
                ..
            }) => match output_in_place {
                true => there.write(at, result),
                false => there.write(self.out(round) + at - round * self.piece, result),
            },
            Some(_) => {}
        }
    }

    /// Where the results of a round are in the staging memory.
    fn out(&self, round: u64) -> u64 {
        (2 + (round & 1)) * self.quarter
    }

    /// Fetches what the others made for this member.
    fn fetch(&self, output: &mut Output<'_>, round: u64) {
        let gets = self.combine.gives_to(self.team.rank) && output.pointer().is_none();
        let Some(staging) = self.staging.as_ref().filter(|_| gets) else {
            return;
        };
        for rank in (0..self.team.peers.len() as u32).filter(|rank| *rank != self.team.rank) {
            let (at, len) = self.share(round, rank);
            let place = self.out(round) + at - round * self.piece;
            output.copy_from(at, &staging.bytes, place, len);
        }
    }
}
