//! Exchanges flags and small payloads between the members of a team that map each other's memory.
//!
//! ```text
//!   block of a member:  slot[from][parity], 128 bytes to 4 KiB each; only `from` writes there
//!     0  sequence of the meeting | 8  descriptor of the call, 3 words | 32  payload
//!                       then a word: some member gave up | gone[from], a word each: `from` gave up
//!                       left[from], a word each: `from` has dropped its board
//! ```
//! The one operation is a *meeting*: each member writes its slot at every other member, the
//! sequence last ([`Board::post`]), and looks until all slots of its own block have the sequence
//! ([`Board::look`]). All collectives on shared memory are meetings with copies between them. Calls
//! meet one after another: a non-blocking one begins when those before it have ended at this
//! member.
//!
//! # Why two parities are enough
//! For meeting `n + 2`, a member overwrites the slots of meeting `n`. It has left meeting `n + 1`
//! by then, so it has seen sequence `n + 1` of every member. Each member wrote that after it had
//! left meeting `n` and read what it needed.
//!
//! # When a block is reused
//! A member drops its board without synchronising: all members have written into its slots when it
//! leaves a meeting. But one that is still in the meeting may give up and write that there, and one
//! that keeps the team may, wrongly, call another collective. So a member that drops its board says
//! so in the blocks of all, and a block is reused, for boards only, once all have. (The block of a
//! board that was given up is not reused at all.)
//!
//! # Lost and late members
//! A member waits only for those whose sequence is missing: a member that left in order, after the
//! last meeting, is not waited for. It gives up a meeting when one of those is lost, at the
//! deadline, or when another member has given up. The board is broken from then on. A member that
//! gives up tells all others.
//!
//! After some meetings members *touch* (access) each other's memory, until the next one. So a
//! member that gives up must know which members access its memory, or may do so later:
//! * A member that comes later finds that it gave up, and gives up too. The one that gives up
//!   writes its word, then looks who has come. The one that comes writes its slot, then looks
//!   whether any member gave up. With a fence on both sides, at least one sees the other.
//! * A member that had come may have continued: it is waited for until it comes to the next
//!   meeting, or gives up. One that has not come may still touch memory since the previous meeting,
//!   and is waited for as well.
//! * A member that does neither within the deadline is stopped in the middle, and may continue at
//!   any time: the staging memory is then not reused ([`super::Staging`]), nor is the heap after
//!   this life.
//!
//! # What it costs
//! Two members: each writes one line and reads one line that the other one has just written. That
//! is one line exchange; 0.17 us were measured where a bare exchange takes 0.14 us. `n` members on
//! `k` cores: every member writes and reads `n - 1` lines, and each runs once per meeting, so there
//! are `n / k` switches per core, which is the minimum; 6 us with 8 members on 2 cores, where a
//! switch takes 1.2 us. A dissemination barrier has fewer lines but `log n` rounds, and each round
//! repeats all switches.

use super::memory::Pool;
use crate::GlobalPtr;
use crate::collective::Output;
use crate::collective::call::{Call, Failure};
use crate::job::Job;
use crate::team::Inner;
use samite_fabric::{Bell, PeerId};
use samite_mem::sync::{Ordering, fence};
use samite_mem::{OwnerProcess, SharedBytes};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

/// The unit of the adjacent-line prefetcher.
const LINES: u64 = 128;
const SLOT_MAX: u64 = 4096;
/// The approximate size of a block of a small team. Large teams have the smallest slots.
const BLOCK: u64 = 64 << 10;

const SEQUENCE: u64 = 0;
const CALL: u64 = 8;
const DATA: u64 = 32;

/// The maximum payload of a meeting, in bytes, in the largest teams. It is larger in others
/// ([`Board::payload`]).
pub(super) const PAYLOAD_MIN: usize = (LINES - DATA) as usize;

/// Teams beyond this size use messages: the blocks of all members together grow with the square.
const MEMBERS_MAX: usize = 256;

/// The size of the word of a member that gives up.
const WORD: u64 = 8;

/// The bits of that word with the rank that the member lost; all ones for none.
const RANK: u64 = 0xffff_ffff;

/// What a member waits for when it gives up, for errors.
const LETTING_GO: &str = "the end of a collective that was given up";

/// Looks at a slot before calling the fabric's wait: about a microsecond, as long as a meeting of
/// members on distant processors takes if they arrive together. A wait looks less often.
const LOOKS: u32 = 600;

/// A team's board; see the module documentation.
#[derive(Debug)]
pub(crate) struct Board {
    /// In a fork, the words of the others are private, and read-only if the system does not
    /// overcommit: its drop must not store there.
    owner: OwnerProcess,
    pub(super) rank: u32,
    pub(super) peers: Arc<[PeerId]>,
    /// By rank.
    bells: Vec<Bell>,
    block: Block,
    /// Written by the others.
    mine: SharedBytes,
    /// By rank: the slots of this member at the other member.
    theirs: Vec<SharedBytes>,
    /// The words of members that give up, behind this member's slots.
    given_up: SharedBytes,
    /// By rank: those words at the other member.
    tell: Vec<SharedBytes>,
    /// The size of a slot in bytes.
    slot: u64,
    /// Distinguishes words for this team from those for another team that had this block.
    mark: u64,
    /// The numbers of calls that have queued for their turn, and that have ended.
    come: AtomicU64,
    ended: AtomicU64,
    /// The sequence of the last meeting. This and the following fields are changed by the call that
    /// has its turn.
    sequence: AtomicU64,
    /// How often this member looks at a slot before it calls the fabric's wait: zero if spinning
    /// would keep the awaited member from running.
    looks: AtomicU32,
    /// Whether members touch each other's memory since the previous meeting, and after the last
    /// one.
    touching: AtomicBool,
    will_touch: AtomicBool,
    broken: OnceLock<Failure>,
    /// Members were stopped in the middle of a call. Memory that they may still touch is not
    /// reused.
    left_late: AtomicBool,
    /// Members may come to a meeting that this one has not left.
    is_abandoned: AtomicBool,
}

/// A meeting that this member has come to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exchange {
    pub(super) sequence: u64,
    touching: bool,
    /// The membership changes that were checked.
    changes: Option<u64>,
}

impl Exchange {
    /// Makes what is known of a meeting from the sequence that [`Board::post`] returned and the
    /// `touching` that it was given.
    #[inline(always)]
    pub(super) fn new(sequence: u64, touching: bool) -> Exchange {
        Exchange {
            sequence,
            touching,
            changes: None,
        }
    }
}

/// This member's part of a board.
#[derive(Debug)]
pub(crate) struct Block {
    pool: Arc<Pool>,
    /// `None` if there is no board because not all members map each other's memory.
    at: Option<GlobalPtr<u8>>,
    /// Bytes of a slot, of all slots, and of the words behind them.
    slot: u64,
    slots: u64,
    words: u64,
}

impl Block {
    /// Allocates a block for a team of these members.
    pub(crate) fn new(job: &Job, peers: &[PeerId]) -> Block {
        let maps = |peer: &PeerId| job.fabric.caps_to(*peer).map;
        let can = (2..=MEMBERS_MAX).contains(&peers.len()) && peers.iter().all(maps);
        let size = peers.len().max(1) as u64;
        let slot = (BLOCK / (2 * size) / LINES * LINES).clamp(LINES, SLOT_MAX);
        let mut block = Block {
            pool: job.collectives.pool.clone(),
            at: None,
            slot,
            slots: 2 * size * slot,
            words: WORD * (1 + 2 * size),
        };
        if can {
            // If allocation fails there is no board, and all members will learn that.
            block.at = block.pool.take(job, block.len()).ok();
        }
        block
    }

    fn len(&self) -> u64 {
        self.slots + self.words + LINES
    }

    /// Returns the words that are sent to the other members.
    pub(crate) fn words(&self) -> [u64; 2] {
        // Slots are aligned to a pair of lines.
        let aligned = |at: GlobalPtr<u8>| at.at_offset(at.offset().next_multiple_of(LINES));
        self.at.map_or(GlobalPtr::NULL, aligned).to_words()
    }

    /// Returns the blocks of all members, if they can be mapped.
    pub(crate) fn map(&self, job: &Job, all: &[[u64; 2]]) -> Option<Vec<SharedBytes>> {
        let map = |at: &[u64; 2]| {
            let at = GlobalPtr::<u8>::from_words(*at);
            // Words need their alignment.
            let is_block = at.offset().is_multiple_of(LINES) && self.at.is_some();
            let bytes = self.slots + self.words;
            is_block.then(|| job.mapped(at, bytes).ok().flatten())?
        };
        all.iter().map(map).collect()
    }

    /// Leaks the block, because others may still write there.
    pub(crate) fn leave_behind(mut self) {
        if self.at.take().is_some() {
            self.pool.leave_behind();
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            // It never became a board, so no other member writes there.
            self.pool.put(at, self.len(), None);
        }
    }
}

/// Returns the failure that broke a board, out of the way of calls that do not fail.
#[cold]
fn once_more(failure: &Failure) -> Failure {
    failure.clone()
}

impl Board {
    /// Returns the board of a team whose members have mapped `blocks`, by rank.
    pub(crate) fn new(team: &Inner, block: Block, blocks: &[SharedBytes]) -> Board {
        let Block {
            slot, slots, words, ..
        } = block;
        let (own, pair) = (team.rank as usize, 2 * slot);
        let first = u64::from(team.rank) * pair;
        // Never 0, the value in every new block.
        let mark = team.id.mixed() & !RANK | 1 << 63;
        let bells = team.peers.iter().map(|peer| team.job.fabric.bell(*peer));
        Board {
            owner: OwnerProcess::current(),
            rank: team.rank,
            peers: team.peers.clone(),
            bells: bells.collect(),
            block,
            mine: blocks[own].clone(),
            given_up: blocks[own].slice(slots, words),
            tell: blocks.iter().map(|b| b.slice(slots, words)).collect(),
            theirs: blocks.iter().map(|b| b.slice(first, pair)).collect(),
            slot,
            mark,
            come: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            // Teams share no sequence numbers: what a member left in the block of a team that all
            // have dropped is not taken for a meeting of the next one.
            sequence: AtomicU64::new(mark),
            looks: AtomicU32::new(LOOKS),
            touching: AtomicBool::new(false),
            will_touch: AtomicBool::new(false),
            broken: OnceLock::new(),
            left_late: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
        }
    }

    pub(super) fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.rank;
        (0..self.size()).filter(move |rank| *rank != me)
    }

    /// Returns true if no call is queued. The caller has the turn of the team.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.has_turn(self.come.load(Ordering::Relaxed))
    }

    /// Queues a call and returns its place. The caller has the turn of the team.
    pub(super) fn come(&self) -> u64 {
        // ORDERING: Relaxed, as for all data of the turn: its lock orders one thread after another.
        self.come.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns true if the calls queued before this one have ended.
    #[inline]
    pub(super) fn has_turn(&self, place: u64) -> bool {
        // ORDERING: Acquire pairs with the Release of `end`: the call before may have run in
        // another thread.
        self.ended.load(Ordering::Acquire) == place
    }

    pub(super) fn end(&self, place: u64) {
        // ORDERING: Release pairs with the Acquire of `has_turn`.
        self.ended.store(place + 1, Ordering::Release);
    }

    /// Returns whether every call fails from now on, before it sends anything.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get().is_some()
    }

    /// Comes to the next meeting, and returns its sequence. `give` writes the payload for a rank.
    /// `touching`: after it, members touch each other's memory. Fails if the board has been given
    /// up.
    // Always inlined, and it returns a number: a processor that reads back a struct that was
    // returned through memory may first have to complete the stores above it, those to the slots
    // of the others (25 of 173 ns on a Zen 4), and the compiler copies the padding behind a `bool`
    // in a way that stalls on each copy.
    #[inline(always)]
    pub(super) fn post(
        &self,
        call: &Call,
        touching: bool,
        give: impl Fn(u32, &SharedBytes, u64),
    ) -> Result<u64, Failure> {
        if let Some(failure) = self.broken.get() {
            return Err(once_more(failure));
        }
        // ORDERING: Relaxed: changed by the call that has its turn, see `has_turn`.
        let sequence = self.sequence.load(Ordering::Relaxed) + 1;
        self.sequence.store(sequence, Ordering::Relaxed);
        self.will_touch.store(touching, Ordering::Relaxed);
        let (me, size) = (self.rank, self.size());
        for to in (me + 1..size).chain(0..me) {
            self.write(to, sequence, call, &give);
        }
        if touching {
            // ORDERING: SeqCst, with the fence of `give_up`: the slots above are seen there, or
            // `look` sees that a member gave up.
            fence(Ordering::SeqCst);
        }
        Ok(sequence)
    }

    /// Looks for all members for a short time, if spinning pays.
    #[inline]
    pub(super) fn spin(&self, sequence: u64) -> bool {
        let all_here = || self.all_here(sequence);
        let looks = self.looks.load(Ordering::Relaxed);
        all_here() || (0..looks).any(|_| all_here())
    }

    /// Returns true if all members have come to the meeting. A failure to meet breaks the board.
    /// Any other failure belongs to the call, and all members see it in the same meeting.
    #[inline]
    pub(super) fn look(
        &self,
        job: &Job,
        call: &Call,
        meeting: &mut Exchange,
    ) -> Result<bool, Failure> {
        if !self.all_here(meeting.sequence) {
            return match self.in_vain(job, meeting) {
                Some(failure) => Err(self.give_up(job, failure)),
                None => Ok(false),
            };
        }
        if meeting.touching
            && let Some(failure) = self.heard()
        {
            return Err(self.give_up(job, failure));
        }
        let compare = |from| call.compare(self.call(from, meeting.sequence), from);
        let alike = self.others().try_for_each(compare);
        let touching = meeting.touching && alike.is_ok();
        self.touching.store(touching, Ordering::Relaxed);
        alike.map(|()| true)
    }

    /// Waits until all members have come to a meeting after which none touches memory. A handler
    /// that panics meanwhile ends the wait, and the board is abandoned.
    #[cold]
    pub(super) fn wait(
        &self,
        job: &Job,
        call: &Call,
        meeting: &mut Exchange,
    ) -> Result<(), Failure> {
        // Checked here, off the critical path.
        let looks = if job.fabric.is_oversubscribed() {
            0
        } else {
            LOOKS
        };
        self.looks.store(looks, Ordering::Relaxed);
        let (known, what) = (*meeting, call.kind.name());
        let step = || {
            let met = self.look(job, call, meeting);
            met.map(|met| met.then_some(())).transpose()
        };
        let ready = || self.is_ready(&known);
        let waited = self.unless_it_panics(|| job.wait_stepping(what, &[], step, ready));
        waited.unwrap_or_else(|error| {
            let failure = Failure::timeout(error, self.awaited(&known));
            Err(self.give_up(job, failure))
        })
    }

    /// Returns true if a look would find something new.
    pub(super) fn is_ready(&self, meeting: &Exchange) -> bool {
        self.all_here(meeting.sequence) || self.somebody_gave_up()
    }

    #[inline(always)]
    fn all_here(&self, sequence: u64) -> bool {
        self.others().all(|from| self.arrived(from, sequence))
    }

    /// Returns why not all members will come, if that is known.
    #[cold]
    fn in_vain(&self, job: &Job, meeting: &mut Exchange) -> Option<Failure> {
        let gave_up = self.heard();
        let changes = Some(job.fabric.changes());
        let has_changed = std::mem::replace(&mut meeting.changes, changes) != changes;
        let is_lost = |rank: &u32| job.lost(self.peers[*rank as usize]).is_some();
        let is_missing = |rank: &u32| !self.arrived(*rank, meeting.sequence);
        // A lost member may have come before its death, so slots are checked again after losses.
        let mut missing = self.others().filter(is_missing);
        let lost = missing.find(|rank| has_changed && is_lost(rank) && is_missing(rank));
        match lost {
            Some(rank) => Some(Failure::Lost(rank)),
            None => gave_up.filter(|_| !self.all_here(meeting.sequence)),
        }
    }

    /// Returns the first member that a meeting waits for.
    pub(super) fn awaited(&self, meeting: &Exchange) -> Option<PeerId> {
        let mut others = self.others();
        let missing = others.find(|rank| !self.arrived(*rank, meeting.sequence));
        missing.map(|rank| self.peers[rank as usize])
    }

    #[inline(always)]
    fn write(&self, to: u32, sequence: u64, call: &Call, give: &impl Fn(u32, &SharedBytes, u64)) {
        let there = &self.theirs[to as usize];
        let slot = (sequence & 1) * self.slot;
        give(to, there, slot + DATA);
        for (at, word) in (CALL..).step_by(8).zip(call.words()) {
            // ORDERING: Relaxed; ordered by the sequence.
            there.u64(slot + at).store(word, Ordering::Relaxed);
        }
        // ORDERING: Release pairs with the Acquire of `arrived`: the rest of the slot, and what
        // this member wrote before the meeting, is visible to a member that sees the sequence.
        there
            .u64(slot + SEQUENCE)
            .store(sequence, Ordering::Release);
        self.bells[to as usize].nudge();
    }

    #[inline(always)]
    fn slot(&self, from: u32, sequence: u64) -> u64 {
        (u64::from(from) * 2 + (sequence & 1)) * self.slot
    }

    /// Returns how many bytes a member can give to another one in a meeting.
    pub(super) fn payload(&self) -> u64 {
        self.slot - DATA
    }

    #[inline(always)]
    fn arrived(&self, from: u32, sequence: u64) -> bool {
        let at = self.slot(from, sequence) + SEQUENCE;
        // ORDERING: Acquire pairs with the Release of `write`.
        self.mine.u64(at).load(Ordering::Acquire) == sequence
    }

    fn call(&self, from: u32, sequence: u64) -> [u64; 3] {
        let at = self.slot(from, sequence) + CALL;
        // ORDERING: Relaxed; ordered by the sequence, which was seen.
        [0, 8, 16].map(|word| self.mine.u64(at + word).load(Ordering::Relaxed))
    }

    /// Reads the payload of a member, from its beginning.
    #[inline]
    pub(super) fn read(&self, sequence: u64, from: u32, into: &mut [u8]) {
        self.mine.read(self.slot(from, sequence) + DATA, into);
    }

    /// Copies the payload of a member into an output.
    pub(super) fn deliver(
        &self,
        (sequence, from): (u64, u32),
        output: &mut Output<'_>,
        (at, len): (u64, u64),
    ) {
        output.copy_from(at, &self.mine, self.slot(from, sequence) + DATA, len);
    }

    /// Marks that others may come to a meeting that this member does not come to, or has not left.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    /// Runs a wait of a call. If a handler panics in it, the board is abandoned.
    pub(crate) fn unless_it_panics<R>(&self, wait: impl FnOnce() -> R) -> R {
        let unwinding = Abandons(self);
        let waited = wait();
        std::mem::forget(unwinding);
        waited
    }

    /// Records that an unfinished call is dropped, in the middle if it had its turn.
    pub(super) fn leave_behind(&self, place: u64) {
        self.block.pool.leave_behind();
        if self.has_turn(place) {
            let _ = self.broken.set(Failure::Refused(self.rank));
            self.end(place);
        }
    }

    /// Returns true if members that were stopped in the middle may still write into staging memory.
    pub(super) fn has_left_late(&self) -> bool {
        self.left_late.load(Ordering::Relaxed)
    }

    fn somebody_gave_up(&self) -> bool {
        // ORDERING: Acquire pairs with the Release of `give_up`: its own word is there.
        self.given_up.u64(0).load(Ordering::Acquire) == self.mark
    }

    /// Returns the word of a member if it gave up: the rank that it lost, if any.
    fn gave_up(&self, rank: u32) -> Option<u32> {
        let at = WORD * (1 + u64::from(rank));
        // ORDERING: Acquire pairs with the Release of `give_up`: what it did to memory of this
        // member is done.
        let said = self.given_up.u64(at).load(Ordering::Acquire);
        (said & !RANK == self.mark).then_some((said & RANK) as u32)
    }

    /// Returns why a member gave up, if one did.
    fn heard(&self) -> Option<Failure> {
        if !self.somebody_gave_up() {
            return None;
        }
        let size = self.size();
        let (rank, lost) = (0..size).find_map(|rank| Some((rank, self.gave_up(rank)?)))?;
        Some(match lost < size {
            true => Failure::Lost(lost),
            false => Failure::Refused(rank),
        })
    }

    /// Leaves the current meeting, and the board, before all members have come. When it returns, no
    /// other member accesses this member's memory, or that memory is not reused.
    #[cold]
    pub(super) fn give_up(&self, job: &Job, failure: Failure) -> Failure {
        // Never set twice: a member whose board is broken enters no meeting.
        let _ = self.broken.set(match &failure {
            // Later calls have not waited themselves.
            Failure::Own(_) => Failure::Refused(self.rank),
            other => other.clone(),
        });
        let (size, sequence) = (self.size(), self.sequence.load(Ordering::Relaxed));
        let lost = match failure {
            Failure::Lost(rank) => u64::from(rank),
            _ => RANK,
        };
        for to in self.others() {
            let there = &self.tell[to as usize];
            // ORDERING: Release pairs with the Acquire of `gave_up` and `somebody_gave_up`.
            there
                .u64(WORD * (1 + u64::from(self.rank)))
                .store(self.mark | lost, Ordering::Release);
            there.u64(0).store(self.mark, Ordering::Release);
            self.bells[to as usize].nudge();
        }
        // ORDERING: SeqCst, with the fence of `post`.
        fence(Ordering::SeqCst);
        let here: Vec<bool> = (0..size).map(|rank| self.arrived(rank, sequence)).collect();
        let (before, touching) = (&self.touching, &self.will_touch);
        let [before, touching] = [before, touching].map(|word| word.load(Ordering::Relaxed));
        let settled = |rank: &u32| {
            let (is_concerned, next) = match here[*rank as usize] {
                true => (touching, sequence + 1),
                false => (before, sequence),
            };
            !is_concerned || self.arrived(*rank, next) || self.gave_up(*rank).is_some()
        };
        // Members that were awaited up to the deadline are not awaited again.
        let timed_out = matches!(failure, Failure::Own(_));
        let (mut late, mut wanted): (Vec<u32>, Vec<u32>) = self
            .others()
            .filter(|rank| !settled(rank))
            .partition(|rank| timed_out && !here[*rank as usize]);
        while !wanted.is_empty() {
            let all_settled = || wanted.iter().all(&settled);
            let peer = |rank: &u32| self.peers[*rank as usize];
            let peers: Vec<PeerId> = wanted.iter().map(peer).collect();
            let all_settled = || all_settled().then_some(());
            match job.wait_until(LETTING_GO, &peers, all_settled) {
                // A dead member touches nothing.
                Err(samite_fabric::Error::PeerLost { peer: lost, .. }) => {
                    wanted.retain(|rank| peer(rank) != lost);
                }
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
            self.block.pool.leave_behind();
        }
        failure
    }
}

/// Abandons a board when dropped.
struct Abandons<'b>(&'b Board);

impl Drop for Abandons<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Drop for Board {
    /// Returns the block for reuse, once all members have dropped their boards, unless one may
    /// still come to this board.
    fn drop(&mut self) {
        if !self.owner.is_current() {
            self.block.at = None;
            return;
        }
        let (size, pool) = (u64::from(self.size()), &self.block.pool);
        let left = WORD * (1 + size);
        for there in &self.tell {
            let word = there.u64(left + WORD * u64::from(self.rank));
            // ORDERING: Release pairs with the Acquire of `Pool::pop`: this member writes no more.
            word.store(self.mark, Ordering::Release);
        }
        if let Some(at) = self.block.at.take() {
            match self.broken.get().is_some() || *self.is_abandoned.get_mut() {
                true => pool.leave_behind(),
                false => {
                    let left = self.given_up.slice(left, WORD * size);
                    pool.put(at, self.block.len(), Some((left, self.mark)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Error, Pgas, Sum, Team, Unit};
    use samite_fabric::{Error as Fabric, Match};
    use samite_testkit::{check, same, units};
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    const PANICS: u16 = 7;

    /// A member may come later to a meeting that this one has left by a panic, or by an error of
    /// `destroy`. The block is not given to another team then.
    #[test]
    fn the_block_of_a_meeting_that_others_come_to_is_left_behind() {
        let name = "collective::shared::board::tests::the_block_of_a_meeting_that_others_come_to_is_left_behind";
        units(2).run(name, |fabric, peers| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let blocks = || pgas.job.collectives.pool.blocks();
            let (first, second) = (world.duplicate()?, world.duplicate()?);
            if world.rank() == 1 {
                let done = Match::from(peers[0], 1);
                while fabric.probe(done).is_none() {
                    fabric.tell(peers[0], PANICS, &[])?;
                }
                fabric.recv(done, &mut [])?;
                first.barrier()?;
                let late = fabric.within(Duration::from_millis(5), || second.destroy());
                check!(late.is_err());
            } else {
                let is_armed = AtomicBool::new(true);
                fabric.on(PANICS, move |_, _| {
                    if is_armed.swap(false, Ordering::Relaxed) {
                        resume_unwind(Box::new("a handler"));
                    }
                    None
                });
                check!(catch_unwind(AssertUnwindSafe(|| first.barrier())).is_err());
                drop(first);
                same!(blocks(), 0);
                let turn = second.0.turn()?;
                same!(second.clone().destroy(), Err(Error::TeamInUse));
                drop(turn);
                drop(second);
                same!(blocks(), 0);
                fabric.send(peers[1], 1, &[])?;
            }
            Ok(world.barrier()?)
        });
    }

    /// A block is reused once all members have dropped their boards.
    #[test]
    fn a_block_belongs_to_its_team_until_all_have_dropped_it() {
        let name = "collective::shared::board::tests::a_block_belongs_to_its_team_until_all_have_dropped_it";
        units(2).run(name, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let block = |team: &Team| team.0.board().map(|board| board.block.at);
            let mut teams = vec![world.duplicate()?];
            let first = block(&teams[0]);
            check!(first.flatten().is_some());
            if world.rank() == 0 {
                teams.clear();
            }
            let second = world.duplicate()?;
            check!(world.rank() != 0 || block(&second) != first);
            teams.clear();
            world.barrier()?;
            same!(block(&world.duplicate()?), first);
            Ok(world.barrier()?)
        });
    }

    /// The deadline ends a blocking call that waits for its turn: the others learn it in that turn,
    /// and the team can be used after it.
    #[test]
    fn a_call_that_gives_up_before_its_turn_ends_in_it() {
        let name =
            "collective::shared::board::tests::a_call_that_gives_up_before_its_turn_ends_in_it";
        units(2).run(name, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            for count in [1, 60_000] {
                let (from, mut into) = (vec![1; count], vec![0; count]);
                if world.rank() == 0 {
                    let first = world.ibarrier()?;
                    let call = || world.all_reduce(&from, &mut into, Sum);
                    let late = fabric.within(Duration::from_millis(5), call);
                    check!(
                        matches!(late, Err(Error::Fabric(Fabric::Timeout { .. }))),
                        "{late:?}"
                    );
                    fabric.send(fabric.job()?[1], 1, &[])?;
                    first.wait()?;
                } else {
                    fabric.recv(Match::any(1), &mut [])?;
                    world.barrier()?;
                    let told = world.all_reduce(&from, &mut into, Sum);
                    check!(
                        matches!(&told, Err(Error::Refused(by)) if *by == Unit(0)),
                        "{told:?}"
                    );
                }
                world.all_reduce(&from, &mut into, Sum)?;
                check!(into.iter().all(|sum| *sum == 2));
            }
            Ok(())
        });
    }

    /// A member comes to a team that another one has dropped.
    #[test]
    fn what_comes_for_a_dropped_team_is_not_taken() {
        let name = "collective::shared::board::tests::what_comes_for_a_dropped_team_is_not_taken";
        units(3).run(name, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let (world, me) = (pgas.world(), pgas.me().0);
            let dropped = world.split_by(u64::from(me == 2))?;
            let parent = world.split_by(u64::from(me == 1))?;
            let old = (me == 1).then_some(dropped);
            let team = parent.duplicate()?;
            world.barrier()?;
            if let Some(old) = old {
                let call = || old.all_reduce(&[1000], &mut [0], Sum);
                check!(fabric.within(Duration::from_millis(5), call).is_err());
                world.barrier()?;
                return Ok(world.barrier()?);
            }
            world.barrier()?;
            let mut sum = [0];
            if me == 2 {
                // Unit 0 waits for this one.
                fabric.recv(Match::any(1), &mut [])?;
            } else {
                fabric.send(fabric.job()?[2], 1, &[])?;
            }
            team.all_reduce(&[1], &mut sum, Sum)?;
            same!(sum, [2]);
            Ok(world.barrier()?)
        });
    }
}
