//! Many bytes that go from one member to another.
//!
//! A block is copied once where one of its ends is in symmetric memory: by the taker, out of where it
//! lies; else by the giver, to where it belongs. Where both ends are, whoever has less to do copies it (a
//! broadcast is shared with the root, what is gathered is put by its givers). Only between two slices it
//! goes through the staging memory of the giver, twice copied, by both at the same time.
//!
//! In a reduce-scatter everybody takes its block of everybody and combines them.

use super::board::Board;
use super::entry::{Told, meet};
use super::staging::{Pieces, Staging, staging};
use crate::Elem;
use crate::collective::call::{Call, Failure};
use crate::collective::combining::Typed;
use crate::collective::op::Operator;
use crate::collective::shape::{Moves, Take};
use crate::collective::{Input, Output};
use crate::team::Inner;
use samite_mem::SharedBytes;

/// Who gives what to whom, as the member at hand sees it.
struct Lanes<'l> {
    /// What it gives to a rank: offset and length.
    gives: &'l dyn Fn(u32) -> (u64, u64),
    takes: &'l dyn Fn(u32) -> Take,
    /// Whether it gives something else to each.
    apart: bool,
    /// Pieces are multiples of so many bytes.
    grain: u64,
    /// Whether the first piece is staged before anybody is known to want it.
    eager: bool,
}

/// After the first meeting: who is where.
struct Plan<'t, 'f> {
    team: &'t Inner<'f>,
    board: &'t Board,
    call: Call,
    /// By rank.
    told: Vec<Told>,
    /// By rank: what this member reads of the others, in place or staged.
    inputs: Vec<Option<SharedBytes>>,
    staging: Option<Staging>,
    pieces: Pieces,
    /// How often pieces are staged.
    rounds: u64,
    apart: bool,
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
        takes: &|from| moves.takes(me, from),
        apart: moves.apart(),
        grain: 64,
        // One target takes all that is gathered: it decides.
        eager: output.pointer().is_none() && !matches!(moves, Moves::Gather { .. }),
    };
    let plan = Plan::make(place, call, &lanes, input, &output)?;
    // Of blocks with both ends in place: how much the taker copies, from the beginning.
    let cut = |len: u64| match moves {
        Moves::Gather { .. } => 0,
        Moves::Broadcast { .. } => (len - len / u64::from(size)) / 64 * 64,
        _ => len,
    };
    plan.put(&lanes, input, cut)?;
    // Not all from the same one at once; what is one's own last.
    for from in (1..=size).map(|by| (me + by) % size) {
        let take = (lanes.takes)(from);
        if from == me {
            output.copy_input(take.at, input, (lanes.gives)(me).0, take.len);
        } else if let Some(bytes) = plan.in_place(from) {
            let both = plan.told[me as usize].output_in_place();
            let len = if both { cut(take.len) } else { take.len };
            output.copy_from(take.at, bytes, plan.told[from as usize].offset, len);
        }
    }
    plan.staged(&lanes, input, &mut |round| {
        for from in (1..size).map(|by| (me + by) % size) {
            let take = (lanes.takes)(from);
            if let Some((bytes, place)) = plan.piece(from, round) {
                let (start, end) = plan.pieces.range(round, take.len);
                output.copy_from(take.at + start, bytes, place, end - start);
            }
        }
    })?;
    plan.end()
}

/// Everybody gets its block of `bytes` of everybody, combined by rank.
pub(super) fn combines<T: Elem, O: Operator<T>>(
    place: (&Inner<'_>, &Board),
    call: Call,
    bytes: u64,
    typed: &Typed<T, O>,
    input: &Input<'_>,
    mut output: Output<'_>,
) -> Result<(), Failure> {
    let (me, size) = (place.0.rank, place.0.peers.len() as u32);
    let element = size_of::<T>() as u64;
    let lanes = Lanes {
        gives: &|to| (u64::from(to) * bytes, bytes),
        takes: &|from| Take {
            from,
            at: 0,
            len: bytes,
        },
        apart: true,
        grain: element,
        eager: true,
    };
    // Nobody else writes its target.
    let plan = Plan::make(place, call, &lanes, input, &Output::nothing())?;
    let (mut sum, mut more) = (typed.scratch(), typed.scratch());
    let step = sum.len() as u64 * element;
    let mut combine = |round, start: u64, end: u64| {
        let mut at = start;
        while at < end {
            let len = step.min(end - at);
            let count = (len / element) as usize;
            for rank in 0..size {
                let with = if rank == 0 { &mut sum } else { &mut more };
                let with = crate::bytes_of_mut(&mut with[..count]);
                if rank == me {
                    input.read(u64::from(me) * bytes + at, with);
                } else if let Some(there) = plan.in_place(rank) {
                    there.read(plan.told[rank as usize].offset + at, with);
                } else if let Some((there, place)) = plan.piece(rank, round) {
                    there.read(place + at - start, with);
                }
                if rank > 0 {
                    typed.append(&mut sum[..count], &more[..count]);
                }
            }
            output.write(at, crate::bytes_of(&sum[..count]));
            at += len;
        }
    };
    if plan.rounds == 0 {
        combine(0, 0, bytes);
    }
    plan.staged(&lanes, input, &mut |round| {
        let (start, end) = plan.pieces.range(round, bytes);
        combine(round, start, end);
    })?;
    plan.end()
}

impl<'t, 'f> Plan<'t, 'f> {
    fn make(
        (team, board): (&'t Inner<'f>, &'t Board),
        call: Call,
        lanes: &Lanes<'_>,
        input: &Input<'_>,
        output: &Output<'_>,
    ) -> Result<Self, Failure> {
        let (me, size) = (team.rank, team.peers.len() as u32);
        let others = || (0..size).filter(|rank| *rank != me);
        let longest = others().map(|to| (lanes.gives)(to).1).max().unwrap_or(0);
        let takes = others().any(|from| (lanes.takes)(from).len > 0);
        let lanes_staged = if lanes.apart { u64::from(size) } else { 1 };
        let pieces = Pieces::new(lanes_staged, lanes.grain);
        let mut plan = Plan {
            team,
            board,
            call,
            told: Vec::new(),
            inputs: Vec::new(),
            staging: None,
            pieces,
            rounds: 0,
            apart: lanes.apart,
        };
        if longest > 0 && input.pointer().is_none() {
            match staging(team, 2 * pieces.half) {
                Ok(staging) => plan.staging = Some(staging),
                Err(error) => return Err(board.refuse(team, &call, error.into())),
            }
        }
        let mut own = Told::new(input, output, plan.staging.as_ref(), longest, takes);
        if lanes.eager && plan.staging.is_some() {
            plan.stage(lanes, input, 0, |_| true);
            own = own.staged();
        }
        let tell = |to| own.block((lanes.gives)(to), (lanes.takes)(to).at);
        plan.told = meet((team, board), &call, tell)?;
        let longest = |rank: u32| match others_want(&plan.told, rank) {
            true => plan.told[rank as usize].longest,
            false => 0,
        };
        plan.rounds = pieces.rounds((0..size).map(longest).max().unwrap_or(0));
        let inputs = (0..size).map(|from| plan.find(lanes, from));
        match inputs.collect() {
            Ok(inputs) => plan.inputs = inputs,
            // The others hear of it when they meet next.
            Err(failure) => return Err(board.refuse(team, &call, failure)),
        }
        Ok(plan)
    }

    /// Maps what this member reads of another one.
    fn find(&self, lanes: &Lanes<'_>, from: u32) -> Result<Option<SharedBytes>, Failure> {
        let (told, me) = (&self.told[from as usize], self.team.rank);
        let expected = (lanes.takes)(from).len;
        if from == me {
            return Ok(None);
        }
        if told.len != expected {
            return Err(Failure::bytes(from, told.len, expected));
        }
        let reads = told.input_in_place() || !self.told[me as usize].output_in_place();
        if expected == 0 || !reads {
            return Ok(None);
        }
        let bytes = match told.input_in_place() {
            true => told.offset.saturating_add(expected),
            false => 2 * self.pieces.half,
        };
        told.input(self.team, bytes).map(Some)
    }

    /// What another member gives, if it is read in place.
    fn in_place(&self, from: u32) -> Option<&SharedBytes> {
        let in_place = self.told[from as usize].input_in_place();
        self.inputs[from as usize].as_ref().filter(|_| in_place)
    }

    /// The piece of a round that another member has staged for this one, and where it is.
    fn piece(&self, from: u32, round: u64) -> Option<(&SharedBytes, u64)> {
        let bytes = self.inputs[from as usize].as_ref()?;
        let staged = !self.told[from as usize].input_in_place();
        let lane = if self.apart {
            u64::from(self.team.rank)
        } else {
            0
        };
        staged.then(|| (bytes, self.pieces.place(round, lane)))
    }

    /// Puts this member's part of the blocks whose targets it reaches: all, where nobody reads them here.
    fn put(
        &self,
        lanes: &Lanes<'_>,
        input: &Input<'_>,
        cut: impl Fn(u64) -> u64,
    ) -> Result<(), Failure> {
        let (me, size) = (self.team.rank, self.team.peers.len() as u32);
        for to in (1..size).map(|by| (me + by) % size) {
            let (told, (offset, len)) = (&self.told[to as usize], (lanes.gives)(to));
            let from = match input.pointer() {
                Some(_) => cut(len),
                None => 0,
            };
            if told.output_in_place() && from < len {
                match told.output(self.team, told.at.saturating_add(len)) {
                    Ok(there) => input.copy_to(offset + from, &there, told.at + from, len - from),
                    Err(failure) => return Err(self.board.refuse(self.team, &self.call, failure)),
                }
            }
        }
        Ok(())
    }

    /// Fills a half with the piece of a round for those who `want` it.
    fn stage(&self, lanes: &Lanes<'_>, input: &Input<'_>, round: u64, want: impl Fn(u32) -> bool) {
        let Some(staging) = &self.staging else {
            return;
        };
        let (me, size) = (self.team.rank, self.team.peers.len() as u32);
        let wanted = (0..size).filter(|to| *to != me && want(*to) && (lanes.gives)(*to).1 > 0);
        let (last, apart) = (usize::MAX, self.apart);
        for to in wanted.take(if apart { last } else { 1 }) {
            let (offset, len) = (lanes.gives)(to);
            let (start, end) = self.pieces.range(round, len);
            let lane = if apart { u64::from(to) } else { 0 };
            let place = self.pieces.place(round, lane);
            input.copy_to(offset + start, &staging.bytes, place, end - start);
        }
    }

    /// Stages and takes what is reached in no other way.
    fn staged(
        &self,
        lanes: &Lanes<'_>,
        input: &Input<'_>,
        take: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        let unstaged = |rank: u32| {
            let told = &self.told[rank as usize];
            others_want(&self.told, rank) && told.longest > 0 && !told.is_staged()
        };
        let late = (0..self.told.len() as u32).any(unstaged);
        for round in 0..self.rounds {
            if round > 0 || late {
                let want = |to: u32| !self.told[to as usize].output_in_place();
                self.stage(lanes, input, round, want);
                self.board.meet(self.team, &self.call, true, |_| &[])?;
            }
            take(round);
        }
        Ok(())
    }

    /// The last meeting: nobody touches the memory of others any more.
    fn end(&self) -> Result<(), Failure> {
        let ended = self.board.meet(self.team, &self.call, false, |_| &[]);
        ended.map(|_| ())
    }
}

/// Whether others take from the staging memory of a member: neither end is in place.
fn others_want(told: &[Told], giver: u32) -> bool {
    let mut takers = told.iter().zip(0..).filter(|(_, rank)| *rank != giver);
    let wants = |taker: &Told| taker.takes() && !taker.output_in_place();
    !told[giver as usize].input_in_place() && takers.any(|(taker, _)| wants(taker))
}
