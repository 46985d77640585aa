//! Many bytes of which everybody takes its own: it reads them from where they lie, or from the staging
//! memory of who gives them.
//!
//! ```text
//!   giver   fill half 0 | meet, tell | (take) | fill half 1 | meet | (take) | fill half 0 | meet ...
//!   taker               | meet       | take 0 |             | meet | take 1 |
//! ```
//! With a giver and a taker on a core each, one fills a piece while the other one takes the piece before.
//! One copy for bytes in symmetric memory, two through the cache for slices.

use super::board::Board;
use super::entry::{STAGING, Staging, Told, meet, staging};
use crate::Elem;
use crate::collective::call::{Call, Failure};
use crate::collective::combining::Typed;
use crate::collective::op::Operator;
use crate::collective::shape::Moves;
use crate::collective::{Input, Output};
use crate::team::Inner;
use samite_mem::SharedBytes;

/// Who gives what to whom, as the member at hand sees it.
struct Lanes<'l> {
    /// What it gives to a rank: offset and length.
    gives: &'l dyn Fn(u32) -> (u64, u64),
    /// How much it takes from a rank.
    takes: &'l dyn Fn(u32) -> u64,
    /// Whether it gives something else to each.
    apart: bool,
    /// Pieces are multiples of so many bytes.
    grain: u64,
}

/// Where the bytes are that come from another member; `None` for the member itself and where there are
/// none.
type Sources = Vec<Option<From>>;

struct From {
    bytes: SharedBytes,
    in_place: bool,
    /// Where this member's block begins in what is given, or in each half of the staging memory.
    offset: u64,
}

/// A piece of every block that is taken: from `start` to `end`, or to the end of the block.
struct Piece<'p> {
    start: u64,
    end: u64,
    half: u64,
    sources: &'p Sources,
}

impl Piece<'_> {
    /// The bytes of a rank and where in them the byte `at` of the block is.
    fn source(&self, rank: u32, at: u64) -> Option<(&SharedBytes, u64)> {
        let from = self.sources[rank as usize].as_ref()?;
        match from.in_place {
            true => Some((&from.bytes, from.offset + at)),
            false => Some((&from.bytes, self.half + from.offset + at - self.start)),
        }
    }
}

pub(super) fn moves(
    place: (&Inner<'_>, &Board),
    call: Call,
    moves: &Moves,
    input: &Input<'_>,
    mut output: Output<'_>,
) -> Result<(), Failure> {
    let (me, size) = (place.0.rank, place.0.peers.len() as u32);
    let lanes = Lanes {
        gives: &|to| moves.gives(me, to),
        takes: &|from| moves.takes(me, from).len,
        apart: moves.apart(),
        grain: 64,
    };
    let told = (Told::new, &output);
    let told = |staging: Option<&Staging>, longest| told.0(input, told.1, staging, longest);
    let plan = Plan::make(place, call, &lanes, input, told)?;
    plan.run(&lanes, input, &mut |piece| {
        // Not all from the same one at once.
        for from in (1..=size).map(|by| (me + by) % size) {
            let take = moves.takes(me, from);
            let (start, end) = (piece.start, piece.end.min(take.len));
            if start >= end {
                continue;
            }
            let (at, len) = (take.at + start, end - start);
            match piece.source(from, start) {
                Some((bytes, offset)) => output.copy_from(at, bytes, offset, len),
                None => output.copy_input(at, input, (lanes.gives)(me).0 + start, len),
            }
        }
    })
}

/// Everybody gets its block of everybody, combined by rank.
pub(super) fn combines<T: Elem, O: Operator<T>>(
    place: (&Inner<'_>, &Board),
    call: Call,
    (block, apart): (&dyn Fn(u32) -> (u64, u64), bool),
    typed: &Typed<T, O>,
    input: &Input<'_>,
    mut output: Output<'_>,
) -> Result<(), Failure> {
    let (me, size) = (place.0.rank, place.0.peers.len() as u32);
    let (own, len) = block(me);
    let element = size_of::<T>() as u64;
    let lanes = Lanes {
        gives: block,
        takes: &|_| len,
        apart,
        grain: element,
    };
    let told =
        |staging: Option<&Staging>, longest| Told::new(input, &Output::nothing(), staging, longest);
    let plan = Plan::make(place, call, &lanes, input, told)?;
    let (mut sum, mut more) = (typed.scratch(), typed.scratch());
    let step = sum.len() as u64 * element;
    plan.run(&lanes, input, &mut |piece| {
        let (mut at, end) = (piece.start, piece.end.min(len));
        while at < end {
            let bytes = step.min(end - at);
            let count = (bytes / element) as usize;
            for rank in 0..size {
                let with = if rank == 0 { &mut sum } else { &mut more };
                let with = crate::bytes_of_mut(&mut with[..count]);
                match piece.source(rank, at) {
                    Some((bytes, offset)) => bytes.read(offset, with),
                    None => input.read(own + at, with),
                }
                if rank > 0 {
                    typed.append(&mut sum[..count], &more[..count]);
                }
            }
            output.write(at, crate::bytes_of(&sum[..count]));
            at += bytes;
        }
    })
}

/// After the first meeting: who is where, and how many pieces there are.
struct Plan<'t, 'f> {
    team: &'t Inner<'f>,
    board: &'t Board,
    call: Call,
    staging: Option<Staging>,
    half: u64,
    piece: u64,
    rounds: u64,
    sources: Sources,
}

impl<'t, 'f> Plan<'t, 'f> {
    fn make(
        (team, board): (&'t Inner<'f>, &'t Board),
        call: Call,
        lanes: &Lanes<'_>,
        input: &Input<'_>,
        told: impl Fn(Option<&Staging>, u64) -> Told,
    ) -> Result<Self, Failure> {
        let (me, size) = (team.rank, team.peers.len() as u32);
        let count = if lanes.apart { u64::from(size) } else { 1 };
        let half = (STAGING / 2).max(count * lanes.grain);
        let others = || (0..size).filter(|rank| *rank != me);
        let longest = others().map(|to| (lanes.gives)(to).1).max().unwrap_or(0);
        let mut plan = Plan {
            team,
            board,
            call,
            staging: None,
            half,
            piece: half / count / lanes.grain * lanes.grain,
            rounds: 1,
            sources: (0..size).map(|_| None).collect(),
        };
        if longest > 0 && input.pointer().is_none() {
            match staging(team, 2 * half) {
                Ok(staging) => plan.staging = Some(staging),
                Err(error) => return Err(board.refuse(team, &call, error.into())),
            }
        }
        plan.stage(lanes, input, 0);
        let own = told(plan.staging.as_ref(), longest);
        let told = meet((team, board), &call, |to| own.block((lanes.gives)(to)))?;
        let longest = told.iter().map(|told| told.longest).max().unwrap_or(0);
        plan.rounds = longest.div_ceil(plan.piece).max(1);
        if longest == 0 {
            plan.piece = u64::MAX;
        }
        match others().try_for_each(|from| plan.find(lanes, from, &told[from as usize])) {
            Ok(()) => Ok(plan),
            // The others hear of it when they meet next.
            Err(failure) => Err(board.refuse(team, &call, failure)),
        }
    }

    fn find(&mut self, lanes: &Lanes<'_>, from: u32, told: &Told) -> Result<(), Failure> {
        let (team, expected) = (self.team, (lanes.takes)(from));
        if told.len != expected {
            // Who gives to nobody in particular gives to whoever takes.
            return Err(Failure::bytes(from, told.len, expected));
        }
        if expected == 0 {
            return Ok(());
        }
        let in_place = told.input_in_place();
        let source = match in_place {
            true => From {
                bytes: told.input(team, told.offset.saturating_add(expected))?,
                in_place,
                offset: told.offset,
            },
            false => From {
                bytes: told.input(team, 2 * self.half)?,
                in_place,
                offset: if lanes.apart {
                    u64::from(team.rank) * self.lane()
                } else {
                    0
                },
            },
        };
        self.sources[from as usize] = Some(source);
        Ok(())
    }

    /// Bytes of a half for each who takes.
    fn lane(&self) -> u64 {
        self.piece
    }

    /// Fills a half with the piece of a round.
    fn stage(&self, lanes: &Lanes<'_>, input: &Input<'_>, round: u64) {
        let Some(staging) = &self.staging else {
            return;
        };
        let (me, size) = (self.team.rank, self.team.peers.len() as u32);
        let half = (round & 1) * self.half;
        let fill = |to: u32, lane: u64| {
            let (offset, len) = (lanes.gives)(to);
            let (start, end) = (round * self.piece, ((round + 1) * self.piece).min(len));
            if start < end {
                let at = half + lane * self.piece;
                input.copy_to(offset + start, &staging.bytes, at, end - start);
            }
        };
        if lanes.apart {
            for to in (0..size).filter(|to| *to != me) {
                fill(to, u64::from(to));
            }
        } else if let Some(to) = (0..size).find(|to| *to != me && (lanes.gives)(*to).1 > 0) {
            fill(to, 0);
        }
    }

    /// Takes piece by piece, then meets for the last time.
    fn run(
        self,
        lanes: &Lanes<'_>,
        input: &Input<'_>,
        take: &mut dyn FnMut(Piece<'_>),
    ) -> Result<(), Failure> {
        for round in 0..self.rounds {
            if round > 0 {
                self.stage(lanes, input, round);
                self.board.meet(self.team, &self.call, true, |_| &[])?;
            }
            let start = round.saturating_mul(self.piece);
            take(Piece {
                start,
                end: start.saturating_add(self.piece),
                half: (round & 1) * self.half,
                sources: &self.sources,
            });
        }
        self.board.meet(self.team, &self.call, false, |_| &[])?;
        Ok(())
    }
}
