//! Flags and few bytes between the members of a team that map each other's memory.
//!
//! ```text
//!   block of a member:  slot[from][parity], 128 bytes to 4 KiB each; only `from` writes there
//!     0  sequence of the meeting | 8  descriptor of the call, 3 words | 32  payload
//! ```
//! The one operation is a *meeting* ([`Board::meet`]): everybody writes its slot at everybody else,
//! the sequence last, and waits until all slots of its own block have the sequence. All collectives on
//! shared memory are meetings with copies between them.
//!
//! # Why two parities are enough
//! A member writes for meeting `n + 2` into the place of meeting `n`. It has left meeting `n + 1` by
//! then, so it has seen everybody's sequence `n + 1`, and everybody wrote that after it had left meeting
//! `n` and read what it wanted of it.
//!
//! # Why a block can be freed at once
//! When a member leaves a meeting everybody has written into its block, and nobody writes there again
//! before the next one. So it can drop the team without asking. (A board in which a member was lost is
//! not freed: somebody may be late.)
//!
//! # Who is lost
//! A member waits for those whose sequence is missing, and for no others: who left in order, after the
//! last meeting, is not missed. A dead member is missed by everybody who stays behind: if somebody gave
//! up meeting `n` because of it, it never wrote `n + 1` to anybody. The board is broken from then on.
//! Where copies follow a meeting, who gives it up also waits until nobody touches its memory any more
//! ([`Board::retreat`]).
//!
//! # What it costs
//! Two members: each writes one line and reads one line that the other one has just written. That is one
//! line exchange; 0.17 us were measured where a bare exchange takes 0.14 us. `n` members on `k` cores:
//! every member writes and reads `n - 1` lines, and each runs once per meeting, so there are `n / k`
//! switches per core, which is the least; 6 us with 8 members on 2 cores, where a switch takes 1.2 us.
//! A dissemination has fewer lines but `log n` rounds, each of which costs all switches anew.

use crate::collective::call::{Call, Failure, Kind};
use crate::collective::shape::{Blocks, Moves};
use crate::collective::{Input, Output};
use crate::job::Job;
use crate::team::Inner;
use crate::{GlobalPtr, Result};
use samite_fabric::PeerId;
use samite_mem::SharedBytes;
use samite_mem::sync::Ordering;
use std::cell::{Cell, OnceCell};

/// The longest payload of a meeting, in bytes, of the largest teams; others have more ([`Board::payload`]).
pub(super) const PAYLOAD_MIN: usize = (LINES - DATA) as usize;

/// What the adjacent-line prefetcher fetches at once.
const LINES: u64 = 128;
const SLOT_MAX: u64 = 4096;
/// A block of small teams, about; large ones have the smallest slots.
const BLOCK: u64 = 64 << 10;

const SEQUENCE: u64 = 0;
const CALL: u64 = 8;
const DATA: u64 = 32;

/// Teams beyond this size use messages: the blocks of all members together grow with the square.
const MEMBERS_MAX: u32 = 256;

/// Looks at a slot before the fabric is asked to wait: some hundred nanoseconds.
const LOOKS: u32 = 100;

/// What a team has of it; see the module's text.
#[derive(Debug)]
pub(crate) struct Board {
    place: GlobalPtr<u8>,
    /// Written by the others.
    mine: SharedBytes,
    /// By rank: the slots of this member there.
    theirs: Vec<SharedBytes>,
    /// Bytes of a slot.
    slot: u64,
    sequence: Cell<u64>,
    broken: OnceCell<Failure>,
}

impl Board {
    /// The board of a team, if all members map each other's memory. Collective, over messages.
    pub(crate) fn make(team: &Inner<'_>) -> Result<Option<Board>> {
        let (size, job) = (team.peers.len() as u32, &team.job);
        if size == 1 || size > MEMBERS_MAX || !job.fabric.caps().map {
            return Ok(None);
        }
        let slot = (BLOCK / u64::from(2 * size) / LINES * LINES).clamp(LINES, SLOT_MAX);
        let (pair, bytes) = (2 * slot, u64::from(2 * size) * slot);
        let own = job.allocate::<u8>(bytes + LINES);
        let told = own.as_ref().map_or(GlobalPtr::NULL, |own| aligned(*own));
        let all = tell_all(team, told.to_bits())?;
        let mapped = |bits: &u128| {
            job.mapped(GlobalPtr::<u8>::from_bits(*bits), bytes)
                .ok()
                .flatten()
        };
        let blocks: Option<Vec<SharedBytes>> = all.iter().map(mapped).collect();
        let agreed = tell_all(team, blocks.is_some().into())?;
        let everybody = agreed.iter().all(|mapped| *mapped == 1);
        match (own, blocks.filter(|_| everybody)) {
            (Ok(place), Some(blocks)) => {
                let first = u64::from(team.rank) * pair;
                Ok(Some(Board {
                    place,
                    mine: blocks[team.rank as usize].clone(),
                    theirs: blocks.iter().map(|b| b.slice(first, pair)).collect(),
                    slot,
                    sequence: Cell::new(0),
                    broken: OnceCell::new(),
                }))
            }
            (Ok(place), None) => {
                job.free(place)?;
                Ok(None)
            }
            (Err(_), _) => Ok(None),
        }
    }

    /// Meets the others; the sequence of the meeting, for [`Board::read`]. `give`: the payload for a
    /// rank. `touching`: after it members touch each other's memory.
    ///
    /// A failure that is not a loss is one of the call: all members see it in the same meeting.
    #[inline]
    pub(super) fn meet<'d>(
        &self,
        team: &Inner<'_>,
        call: &Call,
        touching: bool,
        give: impl Fn(u32) -> &'d [u8],
    ) -> Result<u64, Failure> {
        if let Some(failure) = self.broken.get() {
            return Err(failure.clone());
        }
        let sequence = self.sequence.get() + 1;
        self.sequence.set(sequence);
        let (me, size) = (team.rank, team.peers.len() as u32);
        for to in (me + 1..size).chain(0..me) {
            self.post(team, to, sequence, call, give(to));
        }
        let all_here = || others(me, size).all(|from| self.arrived(from, sequence));
        let looks = if team.job.fabric.is_crowded() {
            0
        } else {
            LOOKS
        };
        if !all_here() && !(0..looks).any(|_| all_here()) {
            self.wait(team, call.kind, sequence)
                .map_err(|failure| self.give_up(team, failure, sequence, touching))?;
        }
        others(me, size).try_for_each(|from| call.compare(self.call(from, sequence), from))?;
        Ok(sequence)
    }

    /// Meets the others to say that this member cannot go on with the call.
    #[cold]
    pub(crate) fn refuse(&self, team: &Inner<'_>, call: &Call, failure: Failure) -> Failure {
        match self.meet(team, &call.refused(), false, |_| &[]) {
            // Somebody is lost: that is why.
            Err(lost @ Failure::Lost(_)) => lost,
            _ => failure,
        }
    }

    fn post(&self, team: &Inner<'_>, to: u32, sequence: u64, call: &Call, payload: &[u8]) {
        let there = &self.theirs[to as usize];
        let slot = (sequence & 1) * self.slot;
        if !payload.is_empty() {
            there.write(slot + DATA, payload);
        }
        for (at, word) in (CALL..).step_by(8).zip(call.words()) {
            // ORDERING: Relaxed; ordered by the sequence.
            there.u64(slot + at).store(word, Ordering::Relaxed);
        }
        // ORDERING: Release pairs with the Acquire of `arrived`: the rest of the slot, and what this
        // member wrote before the meeting, is visible to whoever sees the sequence.
        there
            .u64(slot + SEQUENCE)
            .store(sequence, Ordering::Release);
        team.job.bells[team.group.members()[to as usize].index()].nudge();
    }

    #[inline(always)]
    fn slot(&self, from: u32, sequence: u64) -> u64 {
        (u64::from(from) * 2 + (sequence & 1)) * self.slot
    }

    /// How many bytes a member can give to another one in a meeting.
    pub(super) fn payload(&self) -> u64 {
        self.slot - DATA
    }

    #[inline(always)]
    fn arrived(&self, from: u32, sequence: u64) -> bool {
        let at = self.slot(from, sequence) + SEQUENCE;
        // ORDERING: Acquire pairs with the Release of `post`.
        self.mine.u64(at).load(Ordering::Acquire) == sequence
    }

    fn call(&self, from: u32, sequence: u64) -> [u64; 3] {
        let at = self.slot(from, sequence) + CALL;
        // ORDERING: Relaxed; ordered by the sequence, which was seen.
        [0, 8, 16].map(|word| self.mine.u64(at + word).load(Ordering::Relaxed))
    }

    /// The payload of a member, from its beginning.
    #[inline]
    pub(super) fn read(&self, sequence: u64, from: u32, into: &mut [u8]) {
        self.mine.read(self.slot(from, sequence) + DATA, into);
    }

    /// The payload of a member, into an output.
    pub(super) fn deliver(
        &self,
        sequence: u64,
        from: u32,
        output: &mut Output<'_>,
        at: u64,
        len: u64,
    ) {
        output.copy_from(at, &self.mine, self.slot(from, sequence) + DATA, len);
    }

    /// Waits for the slots that are not there yet.
    #[cold]
    fn wait(&self, team: &Inner<'_>, kind: Kind, sequence: u64) -> Result<(), Failure> {
        let everybody = others(team.rank, team.peers.len() as u32);
        let mut missing: Vec<u32> = everybody.collect();
        loop {
            missing.retain(|from| !self.arrived(*from, sequence));
            if missing.is_empty() {
                return Ok(());
            }
            match self.wait_for(team, kind, sequence, &missing) {
                Ok(()) => return Ok(()),
                // Who is gone and not missed had its say.
                Err(Failure::Lost(rank)) if self.arrived(rank, sequence) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    fn wait_for(
        &self,
        team: &Inner<'_>,
        kind: Kind,
        sequence: u64,
        missing: &[u32],
    ) -> Result<(), Failure> {
        let peers: Vec<PeerId> = missing.iter().map(|r| team.peers[*r as usize]).collect();
        let (fabric, what) = (team.job.fabric, kind.name());
        let mut left = missing.iter().peekable();
        let mut here = || {
            while left
                .next_if(|from| self.arrived(**from, sequence))
                .is_some()
            {}
            left.peek().is_none().then_some(())
        };
        let waited = if team.job.collectives.is_idle() {
            fabric.wait_until(what, &peers, here)
        } else {
            // What this member has in flight is perhaps what the others wait for.
            let all = || missing.iter().all(|from| self.arrived(*from, sequence));
            let step = || {
                team.job.collectives.step();
                here()
            };
            fabric.wait_stepping(what, &peers, step, all)
        };
        waited.map_err(|error| match &error {
            samite_fabric::Error::PeerLost { peer, .. } => {
                let rank = team.peers.iter().position(|member| member == peer);
                Failure::below(error, rank.unwrap_or(0) as u32)
            }
            _ => Failure::Own(error.into()),
        })
    }

    #[cold]
    fn give_up(
        &self,
        team: &Inner<'_>,
        failure: Failure,
        sequence: u64,
        touching: bool,
    ) -> Failure {
        // Nothing is set twice: who is broken does not meet.
        let _ = self.broken.set(failure.clone());
        if touching && matches!(failure, Failure::Lost(_)) {
            self.retreat(team, sequence);
        }
        failure
    }

    /// After a member was lost in this meeting: waits until every other one either gave up too, or has
    /// done what it does between this meeting and the next. First everybody is waited for to have come to
    /// this meeting, and is told at the next one that this member gave up; then everybody is waited for to
    /// come to the next one, or to have given up this one. Both waits are for what the others do without
    /// waiting for this member.
    fn retreat(&self, team: &Inner<'_>, sequence: u64) {
        let refused = Call::new(Kind::Refused, 0);
        let gave_up = |from| self.call(from, sequence)[0] == refused.words()[0];
        let wait = |from, sequence| {
            self.wait_for(team, Kind::Refused, sequence, &[from])
                .is_ok()
        };
        let (me, size) = (team.rank, team.peers.len() as u32);
        let here = others(me, size).filter(|from| wait(*from, sequence));
        let still_in: Vec<u32> = here.filter(|from| !gave_up(*from)).collect();
        for to in &still_in {
            self.post(team, *to, sequence + 1, &refused, &[]);
        }
        for from in still_in {
            wait(from, sequence + 1);
        }
    }
}

/// All ranks but one.
fn others(me: u32, size: u32) -> impl Iterator<Item = u32> {
    (0..size).filter(move |rank| *rank != me)
}

/// Slots begin with a pair of lines.
fn aligned(place: GlobalPtr<u8>) -> GlobalPtr<u8> {
    place.at_offset(place.offset().next_multiple_of(LINES))
}

/// Sixteen bytes of every member, over messages.
fn tell_all(team: &Inner<'_>, word: u128) -> Result<Vec<u128>> {
    let mut all = vec![0u128; team.peers.len()];
    let moves = Moves::AllGather {
        blocks: Blocks::Equal(16),
    };
    let input = Input::Private(bytemuck::bytes_of(&word).into());
    let output = Output::Private(bytemuck::cast_slice_mut(&mut all));
    team.moves_by_messages(team.next_call(Kind::Setup), &moves, &input, output)?;
    Ok(all)
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if self.collectives.leaves_behind() {
            // Others may still write into a board of this unit: its memory is not used for anything else.
            std::mem::forget(self.heap.take());
        }
    }
}

impl Board {
    /// Frees this member's block; see the module's text.
    pub(crate) fn free(&self, job: &Job<'_>) {
        match self.broken.get() {
            None => drop(job.free(self.place)),
            Some(_) => job.collectives.leave_behind(),
        }
    }
}
