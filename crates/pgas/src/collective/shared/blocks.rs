//! Many bytes that go from one member to another.
//!
//! A block is copied once where one of its ends is in symmetric memory: by the taker, out of where it
//! lies; else by the giver, to where it belongs. Where both ends are, whoever has less to do copies it (a
//! broadcast is shared with the root, what is gathered is put by its givers). Between two slices it
//! goes through the staging memory of the giver, twice copied, by both at the same time; of two members
//! that are alone the kernel copies it once for the taker, where it may and that is fastest
//! ([`samite_fabric::CostModel`]).
//!
//! In a reduce-scatter everybody takes its block of everybody and combines them.

use super::board::Board;
use super::entry::{Told, meet, reads_private};
use super::staging::{Pieces, Stage, Staging};
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
    /// Whether its first piece is staged before anybody is known to want it.
    eager: bool,
    /// Whether takers may read private memory.
    private: bool,
}

/// What this member reads of another one.
enum There {
    /// Mapped, from this offset on.
    InPlace(SharedBytes, u64),
    /// In the private memory of a process.
    Private(i32, u64),
    /// Piece by piece in its staging memory.
    Staged(SharedBytes),
}

/// After the first meeting: who is where.
struct Plan<'t> {
    team: &'t Inner,
    board: &'t Board,
    call: Call,
    /// By rank.
    told: Vec<Told>,
    /// By rank; `None` where nothing is read.
    there: Vec<Option<There>>,
    staging: Option<Staging>,
    pieces: Pieces,
    /// How often pieces are staged.
    rounds: u64,
    apart: bool,
    /// The longest block that it takes of another one.
    wanted: u64,
}

pub(super) fn moves(
    (place, stage): ((&Inner, &Board), &Stage<'_>),
    call: Call,
    moves: &Moves,
    input: &Input<'_>,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let (me, size) = (place.0.rank, place.0.peers.len() as u32);
    let lanes = Lanes {
        gives: &|to| moves.gives(me, to),
        takes: &|from| moves.takes(me, from),
        apart: moves.apart(),
        grain: 64,
        // One target takes all that is gathered: it decides.
        eager: output.pointer().is_none() && !matches!(moves, Moves::Gather { .. }),
        private: true,
    };
    let plan = Plan::make((place, stage), call, &lanes, input, output)?;
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
        match &plan.there[from as usize] {
            None if from == me => {
                output.copy_input(take.at, input, (lanes.gives)(me).0, take.len);
            }
            Some(There::InPlace(bytes, offset)) => {
                let both = plan.told[me as usize].output_in_place();
                let len = if both { cut(take.len) } else { take.len };
                output.copy_from(take.at, bytes, *offset, len);
            }
            Some(There::Private(pid, address)) => output
                .copy_private(take.at, (*pid, *address), take.len)
                .map_err(|error| plan.unreadable(from, &error))?,
            Some(There::Staged(_)) | None => {}
        }
    }
    plan.staged(&lanes, input, &mut |round| {
        for from in (1..size).map(|by| (me + by) % size) {
            if let Some(There::Staged(bytes)) = &plan.there[from as usize] {
                let take = (lanes.takes)(from);
                let (start, end) = plan.pieces.range(round, take.len);
                output.copy_from(take.at + start, bytes, plan.lane(round), end - start);
            }
        }
    })?;
    plan.end()
}

/// Everybody gets its block of everybody, combined by rank. `block`: the block of a rank.
pub(super) fn combines<T: Elem, O: Operator<T>>(
    (place, stage): ((&Inner, &Board), &Stage<'_>),
    call: Call,
    block: &dyn Fn(u32) -> (u64, u64),
    typed: &Typed<T, O>,
    input: &Input<'_>,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let (me, size) = (place.0.rank, place.0.peers.len() as u32);
    let element = size_of::<T>() as u64;
    let (own, bytes) = block(me);
    let lanes = Lanes {
        gives: block,
        takes: &|from| Take {
            from,
            at: 0,
            len: bytes,
        },
        apart: true,
        grain: element,
        eager: true,
        private: false,
    };
    // Nobody else writes its target.
    let plan = Plan::make((place, stage), call, &lanes, input, &Output::nothing())?;
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
                match &plan.there[rank as usize] {
                    Some(There::InPlace(there, offset)) => there.read(offset + at, with),
                    Some(There::Staged(there)) => there.read(plan.lane(round) + at - start, with),
                    _ => input.read(own + at, with),
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

impl<'t> Plan<'t> {
    fn make(
        ((team, board), stage): ((&'t Inner, &'t Board), &Stage<'_>),
        call: Call,
        lanes: &Lanes<'_>,
        input: &Input<'_>,
        output: &Output<'_>,
    ) -> Result<Self, Failure> {
        let (me, size) = (team.rank, team.peers.len() as u32);
        let others = || (0..size).filter(|rank| *rank != me);
        let longest = others().map(|to| (lanes.gives)(to).1).max().unwrap_or(0);
        let wanted = others().map(|from| (lanes.takes)(from).len).max();
        let wanted = wanted.unwrap_or(0);
        let lanes_staged = if lanes.apart { u64::from(size) } else { 1 };
        let pieces = Pieces::new(lanes_staged, lanes.grain);
        let mut plan = Plan {
            team,
            board,
            call,
            told: Vec::new(),
            there: Vec::new(),
            staging: None,
            pieces,
            rounds: 0,
            apart: lanes.apart,
            wanted,
        };
        if longest > 0 && input.pointer().is_none() {
            match stage.take(2 * pieces.half) {
                Ok(staging) => plan.staging = Some(staging),
                Err(error) => return Err(board.refuse(team, &call, error.into())),
            }
        }
        let mut own = Told::new(input, output, plan.staging.as_ref(), longest, wanted > 0)
            .reading(lanes.private && reads_private(team, wanted));
        // What this member would read of another one, that one probably reads of this one.
        let read = lanes.private && reads_private(team, longest);
        if lanes.eager && plan.staging.is_some() && !read {
            plan.stage(lanes, input, 0, |_| true);
            own = own.staged();
        }
        let tell = |to| own.block((lanes.gives)(to), (lanes.takes)(to));
        plan.told = meet((team, board), &call, tell)?;
        // Before anything is written anywhere: a target may be shorter than what is given.
        if let Err(failure) = plan.check_lengths(lanes) {
            return Err(board.refuse(team, &call, failure));
        }
        let longest = |rank: u32| match others_want(&plan.told, rank) {
            true => plan.told[rank as usize].longest,
            false => 0,
        };
        plan.rounds = pieces.rounds((0..size).map(longest).max().unwrap_or(0));
        let there = (0..size).map(|from| plan.find(lanes, from));
        match there.collect() {
            Ok(there) => plan.there = there,
            // The others hear of it when they meet next.
            Err(failure) => return Err(board.refuse(team, &call, failure)),
        }
        Ok(plan)
    }

    /// Whether this member and each other one agree on what goes from the one to the other. Only the two know
    /// it; whoever finds out that they do not refuses the call, which ends it at all members.
    fn check_lengths(&self, lanes: &Lanes<'_>) -> Result<(), Failure> {
        let others = (0..)
            .zip(&self.told)
            .filter(|(rank, _)| *rank != self.team.rank);
        for (rank, told) in others {
            let (gives, takes) = ((lanes.gives)(rank).1, (lanes.takes)(rank).len);
            if told.len != takes {
                return Err(Failure::bytes(rank, told.len, takes));
            }
            if told.expected != gives {
                return Err(Failure::bytes(rank, told.expected, gives));
            }
        }
        Ok(())
    }

    /// Where this member reads what another one gives.
    fn find(&self, lanes: &Lanes<'_>, from: u32) -> Result<Option<There>, Failure> {
        let (team, me) = (self.team, self.team.rank);
        let (told, own) = (&self.told[from as usize], &self.told[me as usize]);
        let expected = (lanes.takes)(from).len;
        if from == me {
            return Ok(None);
        }
        if expected == 0 {
            return Ok(None);
        }
        if told.input_in_place() {
            let end = told.offset.saturating_add(expected);
            let there = told.input(team, end)?;
            return Ok(Some(There::InPlace(there, told.offset)));
        }
        if own.output_in_place() {
            return Ok(None);
        }
        let peer = team.peers[from as usize];
        if own.reads()
            && let Some(pid) = team.job.fabric.reads_private(peer, self.wanted)
        {
            let address = told.address.wrapping_add(told.offset);
            return Ok(Some(There::Private(pid, address)));
        }
        let there = told.input(team, 2 * self.pieces.half)?;
        Ok(Some(There::Staged(there)))
    }

    /// Where this member's pieces of a round are in the staging memory of the others.
    fn lane(&self, round: u64) -> u64 {
        let lane = if self.apart {
            u64::from(self.team.rank)
        } else {
            0
        };
        self.pieces.place(round, lane)
    }

    /// The kernel did not copy: the member is gone, or it says no all of a sudden.
    #[cold]
    fn unreadable(&self, from: u32, error: &std::io::Error) -> Failure {
        tracing::warn!(from, %error, "the kernel does not copy out of a member any more");
        self.board
            .refuse(self.team, &self.call, Failure::Refused(from))
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
        let lanes_filled = if self.apart { usize::MAX } else { 1 };
        for to in wanted.take(lanes_filled) {
            let (offset, len) = (lanes.gives)(to);
            let (start, end) = self.pieces.range(round, len);
            let lane = if self.apart { u64::from(to) } else { 0 };
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
                self.stage(lanes, input, round, |to| wants(&self.told[to as usize]));
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

/// Whether a member takes slices from staging memory: it reaches them in no other way, nor is it reached.
fn wants(taker: &Told) -> bool {
    taker.takes() && !taker.output_in_place() && !taker.reads()
}

/// Whether others take from the staging memory of a member. Everybody has the same answer.
fn others_want(told: &[Told], giver: u32) -> bool {
    let mut takers = told.iter().zip(0..).filter(|(_, rank)| *rank != giver);
    !told[giver as usize].input_in_place() && takers.any(|(taker, _)| wants(taker))
}
