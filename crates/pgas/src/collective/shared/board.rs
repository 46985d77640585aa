//! Flags and few bytes between the members of a team that map each other's memory.
//!
//! ```text
//!   block of a member:  slot[from][parity], 128 bytes to 4 KiB each; only `from` writes there
//!     0  sequence of the meeting | 8  descriptor of the call, 3 words | 32  payload
//!                       then a word: somebody gave up | gone[from], a word each: `from` gave up
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
//! When a member leaves a meeting everybody has written into its slots, and nobody writes there again
//! before the next one. So it can drop the team without asking. But somebody who is still in the meeting
//! may give it up, and say so there: the block is used again for boards only, and what is said bears the
//! mark of its team. (A board that was given up is not used again at all.)
//!
//! # Who is lost, and who is late
//! A member waits for those whose sequence is missing, and for no others: who left in order, after the
//! last meeting, is not missed. It gives a meeting up when one of those is lost, at the deadline, or when
//! somebody else has given up; the board is broken from then on. Whoever gives up says so to everybody.
//!
//! After some meetings members *touch* each other's memory, until the next one. So a member that gives up must
//! know who is at its memory, or may come to it:
//! * Who comes later finds that it gave up, and gives up too. Of the one that gives up (it says so, then looks
//!   who has come) and the one that comes (it writes its slot, then looks whether somebody gave up) one sees the
//!   other: a fence on both sides.
//! * Who had come may have gone on: it is waited for until it comes to the next meeting, or has given up. So is
//!   who has not come yet from the meeting before.
//! * A panic of the user's operator gives up, too.
//! * Who does not do so within the deadline is stopped in the middle, and may go on at any time: the staging
//!   memory is then not used again ([`super::Staging`]), nor the heap after this life.
//!
//! # What it costs
//! Two members: each writes one line and reads one line that the other one has just written. That is one
//! line exchange; 0.17 us were measured where a bare exchange takes 0.14 us. `n` members on `k` cores:
//! every member writes and reads `n - 1` lines, and each runs once per meeting, so there are `n / k`
//! switches per core, which is the least; 6 us with 8 members on 2 cores, where a switch takes 1.2 us.
//! A dissemination has fewer lines but `log n` rounds, each of which costs all switches anew.

use crate::collective::call::{Call, Failure, Kind};
use crate::collective::shape::{self, Moves};
use crate::collective::{Input, Output};
use crate::team::Inner;
use crate::{GlobalPtr, Result};
use samite_fabric::PeerId;
use samite_mem::SharedBytes;
use samite_mem::sync::{Ordering, fence};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

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

/// Of what a member says that gives up.
const WORD: u64 = 8;

/// The rank in it: whom the member lost; all ones for nobody.
const RANK: u64 = 0xffff_ffff;

/// What a member waits for that gives up.
const LETTING_GO: &str = "the end of a collective that was given up";

/// Looks at a slot before the fabric is asked to wait: some hundred nanoseconds.
const LOOKS: u32 = 100;

/// What a team has of it; see the module's text.
#[derive(Debug)]
pub(crate) struct Board {
    pub(super) place: GlobalPtr<u8>,
    /// Length of the block.
    pub(super) bytes: u64,
    /// Written by the others.
    mine: SharedBytes,
    /// By rank: the slots of this member there.
    theirs: Vec<SharedBytes>,
    /// What this member is told by those who give up, behind its slots.
    given_up: SharedBytes,
    /// By rank: the same there.
    tell: Vec<SharedBytes>,
    /// Bytes of a slot.
    slot: u64,
    /// Tells what is said here from what is said of another team whose block this was.
    mark: u64,
    /// Of the last meeting. This and what follows is changed by whoever has the team's turn.
    sequence: AtomicU64,
    /// How often this member looks at a slot before it asks the fabric to wait: not at all where it would keep
    /// whom it waits for from running.
    looks: AtomicU32,
    /// Whether members touch each other's memory since the last meeting.
    touching: AtomicBool,
    pub(super) broken: OnceLock<Failure>,
    /// Members were stopped in the middle of a call: what memory they may still touch is not used again.
    left_late: AtomicBool,
}

impl Board {
    /// The board of a team, if all members map each other's memory. Collective, over messages.
    pub(crate) fn make(team: &Inner) -> Result<Option<Board>> {
        let (size, job) = (team.peers.len() as u32, &team.job);
        let maps = |peer: &PeerId| job.fabric.caps_to(*peer).map;
        if size == 1 || size > MEMBERS_MAX || !team.peers.iter().all(maps) {
            return Ok(None);
        }
        let slot = (BLOCK / u64::from(2 * size) / LINES * LINES).clamp(LINES, SLOT_MAX);
        let (pair, slots) = (2 * slot, u64::from(2 * size) * slot);
        let words = WORD * (1 + u64::from(size));
        let own = job.collectives.blocks.take(job, slots + words + LINES);
        let told = own.as_ref().map_or(GlobalPtr::NULL, |own| aligned(*own));
        let all = tell_all(team, told.to_bits()).inspect_err(|_| {
            // Nobody writes there before all have answered twice.
            if let Ok(own) = own {
                job.collectives.blocks.put(own, slots + words + LINES);
            }
        })?;
        let mapped = |bits: &u128| {
            let place = GlobalPtr::<u8>::from_bits(*bits);
            // Its words are reached as words.
            let is_block = place.offset().is_multiple_of(LINES);
            is_block.then(|| job.mapped(place, slots + words).ok().flatten())?
        };
        let blocks: Option<Vec<SharedBytes>> = all.iter().map(mapped).collect();
        let agreed = tell_all(team, blocks.is_some().into())
            .inspect_err(|_| job.collectives.leave_behind())?;
        let everybody = agreed.iter().all(|mapped| *mapped == 1);
        match (own, blocks.filter(|_| everybody)) {
            (Ok(place), Some(blocks)) => {
                let first = u64::from(team.rank) * pair;
                Ok(Some(Board {
                    place,
                    bytes: slots + words + LINES,
                    mine: blocks[team.rank as usize].clone(),
                    given_up: blocks[team.rank as usize].slice(slots, words),
                    tell: blocks.iter().map(|b| b.slice(slots, words)).collect(),
                    theirs: blocks.iter().map(|b| b.slice(first, pair)).collect(),
                    slot,
                    mark: mark(team),
                    sequence: AtomicU64::new(0),
                    looks: AtomicU32::new(LOOKS),
                    touching: AtomicBool::new(false),
                    broken: OnceLock::new(),
                    left_late: AtomicBool::new(false),
                }))
            }
            (Ok(place), None) => {
                job.collectives.blocks.put(place, slots + words + LINES);
                Ok(None)
            }
            (Err(_), _) => Ok(None),
        }
    }

    /// Meets the others; the sequence of the meeting, for [`Board::read`]. `give`: the payload for a
    /// rank. `touching`: after it members touch each other's memory.
    ///
    /// A failure to meet breaks the board; any other one is of the call: all members see it in the same
    /// meeting.
    #[inline]
    pub(super) fn meet<'d>(
        &self,
        team: &Inner,
        call: &Call,
        touching: bool,
        give: impl Fn(u32) -> &'d [u8],
    ) -> Result<u64, Failure> {
        if let Some(failure) = self.broken.get() {
            return Err(failure.clone());
        }
        // ORDERING: Relaxed, as all that belongs to the turn: its lock orders one thread after another.
        let sequence = self.sequence.load(Ordering::Relaxed) + 1;
        self.sequence.store(sequence, Ordering::Relaxed);
        let (me, size) = (team.rank, team.peers.len() as u32);
        for to in (me + 1..size).chain(0..me) {
            self.post(team, to, sequence, call, give(to));
        }
        if touching {
            // ORDERING: SeqCst, with the fence of `give_up`: the slots above are seen there, or the look below
            // sees that somebody gave up.
            fence(Ordering::SeqCst);
        }
        let all_here = || others(me, size).all(|from| self.arrived(from, sequence));
        let looks = self.looks.load(Ordering::Relaxed);
        if !all_here() && !(0..looks).any(|_| all_here()) {
            self.wait(team, call.kind, sequence)
                .map_err(|failure| self.give_up(team, failure, touching))?;
        }
        if touching && let Some(failure) = self.heard(size) {
            return Err(self.give_up(team, failure, touching));
        }
        let alike =
            others(me, size).try_for_each(|from| call.compare(self.call(from, sequence), from));
        self.touching
            .store(touching && alike.is_ok(), Ordering::Relaxed);
        alike.map(|()| sequence)
    }

    /// Meets the others to say that this member cannot go on with the call.
    #[cold]
    pub(crate) fn refuse(&self, team: &Inner, call: &Call, failure: Failure) -> Failure {
        match self.meet(team, &call.refused(), false, |_| &[]) {
            // Somebody is lost: that is why.
            Err(lost @ Failure::Lost(_)) => lost,
            _ => failure,
        }
    }

    fn post(&self, team: &Inner, to: u32, sequence: u64, call: &Call, payload: &[u8]) {
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
    fn wait(&self, team: &Inner, kind: Kind, sequence: u64) -> Result<(), Failure> {
        // Asked here, where it costs nothing that anybody waits for.
        let looks = if team.job.fabric.is_crowded() {
            0
        } else {
            LOOKS
        };
        self.looks.store(looks, Ordering::Relaxed);
        let size = team.peers.len() as u32;
        let mut missing: Vec<u32> = others(team.rank, size).collect();
        loop {
            missing.retain(|from| !self.arrived(*from, sequence));
            if missing.is_empty() {
                return Ok(());
            }
            let mut left = missing.iter().peekable();
            let mut here = || {
                while left
                    .next_if(|from| self.arrived(**from, sequence))
                    .is_some()
                {}
                left.peek().is_none() || self.somebody_gave_up()
            };
            match self.wait_for(team, kind.name(), &missing, &mut here) {
                // Who has given up does not come any more.
                Ok(()) if missing.iter().all(|from| self.arrived(*from, sequence)) => return Ok(()),
                Ok(()) => self.heard(size).map_or(Ok(()), Err)?,
                // Who is gone and not missed had its say.
                Err(Failure::Lost(rank)) if self.arrived(rank, sequence) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Waits until `here`, which depends on the members of `whom`.
    fn wait_for(
        &self,
        team: &Inner,
        what: &'static str,
        whom: &[u32],
        here: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failure> {
        let peers: Vec<PeerId> = whom.iter().map(|r| team.peers[*r as usize]).collect();
        let here = || here().then_some(());
        let waited = team.job.wait_until(what, &peers, here);
        waited.map_err(|error| Failure::of(error, team))
    }

    /// Whether members that were stopped in the middle may still write into staging memory.
    pub(super) fn has_left_late(&self) -> bool {
        self.left_late.load(Ordering::Relaxed)
    }

    fn somebody_gave_up(&self) -> bool {
        // ORDERING: Acquire pairs with the Release of `give_up`: its own word is there.
        self.given_up.u64(0).load(Ordering::Acquire) == self.mark
    }

    /// What a member said when it gave up, if it did: whom it lost, perhaps.
    fn gave_up(&self, rank: u32) -> Option<u32> {
        let at = WORD * (1 + u64::from(rank));
        // ORDERING: Acquire pairs with the Release of `give_up`: what it did to memory of this member is done.
        let said = self.given_up.u64(at).load(Ordering::Acquire);
        (said & !RANK == self.mark).then_some((said & RANK) as u32)
    }

    /// Why somebody gave up, if anybody did.
    fn heard(&self, size: u32) -> Option<Failure> {
        if !self.somebody_gave_up() {
            return None;
        }
        let (rank, lost) = (0..size).find_map(|rank| Some((rank, self.gave_up(rank)?)))?;
        Some(match lost < size {
            true => Failure::Lost(lost),
            false => Failure::Refused(rank),
        })
    }

    /// This member leaves the meeting that it is in, and the board, before everybody has come. When it returns
    /// nobody is at its memory, or what they are at is not used again.
    #[cold]
    fn give_up(&self, team: &Inner, failure: Failure, touching: bool) -> Failure {
        // It is not set twice: a member whose board is broken meets nobody.
        let _ = self.broken.set(failure.clone());
        let (me, size, sequence) = (
            team.rank,
            team.peers.len() as u32,
            self.sequence.load(Ordering::Relaxed),
        );
        let lost = match failure {
            Failure::Lost(rank) => u64::from(rank),
            _ => RANK,
        };
        for to in others(me, size) {
            let there = &self.tell[to as usize];
            // ORDERING: Release pairs with the Acquire of `gave_up` and `somebody_gave_up`.
            there
                .u64(WORD * (1 + u64::from(me)))
                .store(self.mark | lost, Ordering::Release);
            there.u64(0).store(self.mark, Ordering::Release);
            team.job.bells[team.group.members()[to as usize].index()].nudge();
        }
        // ORDERING: SeqCst, with the fence of `meet`.
        fence(Ordering::SeqCst);
        let here: Vec<bool> = (0..size).map(|rank| self.arrived(rank, sequence)).collect();
        let before = self.touching.load(Ordering::Relaxed);
        let settled = |rank: &u32| {
            let (is_concerned, next) = match here[*rank as usize] {
                true => (touching, sequence + 1),
                false => (before, sequence),
            };
            !is_concerned || self.arrived(*rank, next) || self.gave_up(*rank).is_some()
        };
        // Who was waited for up to the deadline is not waited for once more.
        let timed_out = matches!(failure, Failure::Own(_));
        let (mut late, mut wanted): (Vec<u32>, Vec<u32>) = others(me, size)
            .filter(|rank| !settled(rank))
            .partition(|rank| timed_out && !here[*rank as usize]);
        while !wanted.is_empty() {
            let mut all_settled = || wanted.iter().all(&settled);
            match self.wait_for(team, LETTING_GO, &wanted, &mut all_settled) {
                // The dead touch nothing.
                Err(Failure::Lost(rank)) => wanted.retain(|other| *other != rank),
                Err(_) => late.append(&mut wanted),
                Ok(()) => {}
            }
            wanted.retain(|rank| !settled(rank));
        }
        late.retain(|rank| !settled(rank));
        if !late.is_empty() {
            tracing::warn!(
                ranks = ?late,
                "members are stopped in the middle of a collective that was given up"
            );
            self.left_late.store(true, Ordering::Relaxed);
            team.job.collectives.leave_behind();
        }
        failure
    }
}

/// Gives a board up when a call on it ends by a panic of the user's operator: the others may be at the staging
/// memory of this member, and wait for it.
pub(super) struct Unwinding<'t> {
    team: &'t Inner,
    board: &'t Board,
}

impl<'t> Unwinding<'t> {
    pub(super) fn guard((team, board): (&'t Inner, &'t Board)) -> Self {
        Unwinding { team, board }
    }

    /// The call has ended in order.
    pub(super) fn ended(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        let touching = self.board.touching.load(Ordering::Relaxed);
        if touching && self.board.broken.get().is_none() {
            let failure = Failure::Refused(self.team.rank);
            self.board.give_up(self.team, failure, touching);
        }
    }
}

/// All ranks but one.
fn others(me: u32, size: u32) -> impl Iterator<Item = u32> {
    (0..size).filter(move |rank| *rank != me)
}

/// The mark of a team; not 0, which is in every new block.
fn mark(team: &Inner) -> u64 {
    (team.id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !RANK) | 1 << 63
}

/// Slots begin with a pair of lines.
fn aligned(place: GlobalPtr<u8>) -> GlobalPtr<u8> {
    place.at_offset(place.offset().next_multiple_of(LINES))
}

/// Sixteen bytes of every member, over messages.
fn tell_all(team: &Inner, word: u128) -> Result<Vec<u128>> {
    let mut all = vec![0u128; team.peers.len()];
    let moves = Moves::AllGather {
        blocks: shape::Blocks::Equal(16),
    };
    let input = Input::Private(bytemuck::bytes_of(&word).into());
    let output = Output::Private(bytemuck::cast_slice_mut(&mut all));
    team.moves_by_messages(team.next_call(Kind::Setup), &moves, &input, output)?;
    Ok(all)
}
