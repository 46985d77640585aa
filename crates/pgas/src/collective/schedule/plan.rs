//! Schedules of members that map each other's memory, for data larger than a slot.
//!
//! ```text
//!   stage a piece | Meet: who has what, where ([`Announcement`]) | steps, a Meet per piece | Meet
//! ```
//! # Bytes that move
//! A block is copied once if one of its ends is in symmetric memory: by the taker if the source is,
//! else by the giver, straight to the target. If both ends are, the member with less work copies it
//! (the root shares the copying of a broadcast; givers put what is gathered). Between two slices,
//! it goes through the staging memory of the giver: two copies, which both members make at the same
//! time. In a team of two, the kernel copies it once for the taker if that is allowed and fastest
//! ([`samite_fabric::CostModel`]). In a reduce-scatter, each member takes its block from every
//! member and combines them.
//!
//! ```text
//!   giver   fill half 0 | meet | (take) | fill half 1 | meet | (take) | fill half 0 | meet ...
//!   taker               | meet | take 0 |             | meet | take 1 |
//! ```
//! If giver and taker have a core each, one fills a piece while the other takes the previous one. A
//! half is refilled only after a meeting to which all members came after they had read it.
//!
//! # Vectors that are combined
//! Each member combines its share of the vector for all members that get a result. It reads the
//! vectors and writes the results in place, or through the staging memory.
//!
//! ```text
//!            rank 0  rank 1  rank 2          staging memory: two halves in, two halves out
//!   input    ======  ======  ======
//!   share of rank 1:  |##|  reads all three, writes all three results
//! ```
//! Each byte of a vector is read once, and each result is written once: with P members on P cores,
//! each moves 2 vectors, whatever P is. A piece needs one meeting: while the results of a piece are
//! being computed, members fetch those of the previous piece.

use super::{Builder, INPUT, Memory, OUTPUT, STAGING, Schedule, Span, Term, shares, span};
use crate::collective::call::Failure;
use crate::collective::shape::{Combine, Elements, Shape};

/// Bytes of the staging memory, unless elements are larger: it stays in the second-level cache.
/// Smaller in tests, so that few bytes make many pieces.
pub(crate) const STAGING_BYTES: u64 = if cfg!(test) { 8 << 10 } else { 1 << 20 };

/// What a member announces to another one in the first meeting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Announcement {
    /// Where the member is read, see [`Memory::From`]: the words of a pointer.
    pub(crate) from: [u64; 2],
    /// Where the member is written, see [`Memory::Into`].
    pub(crate) into: [u64; 2],
    /// The address of its source in its process.
    pub(crate) address: u64,
    /// The part of its source that is for the other member.
    pub(crate) offset: u64,
    len: u64,
    /// Where in its target the part from the other one goes.
    at: u64,
    /// The expected length of that part.
    expected: u64,
    /// The length of the longest block that it gives to another member.
    longest: u64,
    flags: u64,
}

/// Flag: its source can be read in place.
const INPUT_IN_PLACE: u64 = 1;
/// Flag: its target can be written in place.
const OUTPUT_IN_PLACE: u64 = 2;
/// Flag: it receives something.
const TAKES: u64 = 4;
/// Flag: its first piece is in its staging memory.
const STAGED: u64 = 8;
/// Flag: it reads from the private memory of others.
const READS: u64 = 16;

impl Announcement {
    fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// Returns true if it takes slices from staging memory, because neither side can reach the
    /// other's memory directly.
    fn wants_pieces(&self) -> bool {
        self.has(TAKES) && !self.has(OUTPUT_IN_PLACE) && !self.has(READS)
    }
}

/// What a member knows before the first meeting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Whether the others can access its source, and its target, in place.
    pub(crate) input_in_place: bool,
    pub(crate) output_in_place: bool,
}

/// How this member reads what another one gives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadPath {
    InPlace,
    Private,
    Staged,
    /// Not at all: it gives nothing, or puts it.
    Not,
}

/// The plan of one member.
#[derive(Debug)]
pub(crate) struct Plan {
    shape: Shape,
    own: Own,
    /// Whether it reads from the private memory of others, and they from its own.
    reads: bool,
    is_read: bool,
    /// By rank, known once all have met.
    told: Vec<Announcement>,
    builder: Builder,
    /// The length of a half of the staging memory, or of a quarter if results go through it as
    /// well.
    part: u64,
    /// Bytes of a block that go through it at a time.
    piece: u64,
    round: u64,
    /// The number of pieces of the longest block.
    rounds: u64,
}

impl Plan {
    /// Plans a collective. `reads_private(n)`: whether members should read `n` bytes from private
    /// memory.
    pub(crate) fn new(shape: Shape, mut own: Own, reads_private: impl Fn(u64) -> bool) -> Plan {
        let (part, piece) = match &shape {
            Shape::Combines(Combine::ReduceScatter, elements) => {
                // The other member does not write its target.
                own.output_in_place = false;
                pieces(own.size, elements.size)
            }
            Shape::Combines(_, elements) => {
                let quarter = (STAGING_BYTES / 4).max(elements.size);
                (quarter, quarter / elements.size * elements.size)
            }
            shape => pieces(if shape.apart() { own.size } else { 1 }, 64),
        };
        let mut plan = Plan {
            builder: Builder::new(own.rank, own.size),
            shape,
            own,
            reads: false,
            is_read: false,
            told: Vec::new(),
            part,
            piece,
            round: 0,
            rounds: 0,
        };
        if !matches!(plan.shape, Shape::Combines(..)) {
            plan.reads = reads_private(plan.wanted());
            // If this member would read from another one, that one probably reads from this one.
            plan.is_read = reads_private(plan.longest());
        }
        plan
    }

    /// Returns what members combine in shares, if this collective does so.
    fn columns(&self) -> Option<(Combine, Elements)> {
        match self.shape {
            Shape::Combines(combine, elements) if combine != Combine::ReduceScatter => {
                Some((combine, elements))
            }
            _ => None,
        }
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let Own { rank, size, .. } = self.own;
        // Members start with different ones.
        (1..size).map(move |by| (rank + by) % size)
    }

    /// The length of the longest block that it gives to another member.
    fn longest(&self) -> u64 {
        let gives = |to| self.shape.gives(self.own.rank, to).1;
        self.others().map(gives).max().unwrap_or(0)
    }

    /// Returns the longest block that it takes from another member.
    pub(crate) fn wanted(&self) -> u64 {
        let takes = |from| self.shape.takes(self.own.rank, from).len;
        self.others().map(takes).max().unwrap_or(0)
    }

    /// Returns the length of the staging memory that it needs, if any.
    pub(crate) fn staging(&self) -> Option<u64> {
        match self.columns() {
            Some((combine, _)) => {
                let is_fetched = combine.gives_to(self.own.rank) && !self.own.output_in_place;
                (is_fetched || !self.own.input_in_place).then_some(4 * self.part)
            }
            None => (self.longest() > 0 && !self.own.input_in_place).then_some(2 * self.part),
        }
    }

    /// Returns true if its first piece is staged before it is known that anyone wants it.
    fn is_eager(&self) -> bool {
        let is_eager = match &self.shape {
            // There is only one target, so the root decides.
            Shape::Gather { .. } => false,
            Shape::Combines(..) => true,
            _ => !self.own.output_in_place && !self.is_read,
        };
        is_eager && !self.own.input_in_place && self.staging().is_some()
    }

    /// Returns the steps before the first meeting.
    pub(crate) fn begin(&mut self) -> Schedule {
        if self.is_eager() {
            self.stage(0, |_| true);
        }
        std::mem::take(&mut self.builder.schedule)
    }

    /// Returns the announcement to a rank in the first meeting, without the locations of memory.
    pub(crate) fn tell(&self, to: u32) -> Announcement {
        let (offset, len) = self.shape.gives(self.own.rank, to);
        let take = self.shape.takes(self.own.rank, to);
        let takes = match self.columns() {
            Some((combine, _)) => combine.gives_to(self.own.rank),
            None => self.wanted() > 0,
        };
        let flag = |set, flag| if set { flag } else { 0 };
        Announcement {
            offset,
            len,
            at: take.at,
            expected: take.len,
            longest: self.longest(),
            flags: flag(self.own.input_in_place, INPUT_IN_PLACE)
                | flag(self.own.output_in_place, OUTPUT_IN_PLACE)
                | flag(takes, TAKES)
                | flag(self.is_eager(), STAGED)
                | flag(self.reads, READS),
            ..Announcement::default()
        }
    }

    /// Takes the announcements of all members, by rank. Fails, before anything is written, if this
    /// member and another one disagree on the length of their block. Only these two can detect
    /// that.
    pub(crate) fn learn(&mut self, told: Vec<Announcement>) -> Result<(), Failure> {
        self.told = told;
        if let Some((combine, elements)) = self.columns() {
            let in_place = |(rank, told): (u32, &Announcement)| {
                told.has(INPUT_IN_PLACE) && (told.has(OUTPUT_IN_PLACE) || !combine.gives_to(rank))
            };
            if (0..).zip(&self.told).all(in_place) {
                self.piece = elements.bytes;
            }
            self.rounds = elements.bytes.div_ceil(self.piece);
            return Ok(());
        }
        for rank in self.others() {
            let told = &self.told[rank as usize];
            let gives = self.shape.gives(self.own.rank, rank).1;
            let takes = self.shape.takes(self.own.rank, rank).len;
            if told.len != takes {
                return Err(Failure::bytes(rank, told.len, takes));
            }
            if told.expected != gives {
                return Err(Failure::bytes(rank, told.expected, gives));
            }
        }
        let staged = (0..self.own.size).filter(|rank| self.is_staged(*rank));
        let longest = staged.map(|rank| self.told[rank as usize].longest).max();
        self.rounds = longest.unwrap_or(0).div_ceil(self.piece);
        Ok(())
    }

    /// Returns how many bytes of [`Memory::From`] and [`Memory::Into`] of another member the steps
    /// access.
    pub(crate) fn reach(&self, rank: u32) -> (Option<u64>, Option<u64>) {
        let told = &self.told[rank as usize];
        if let Some((combine, elements)) = self.columns() {
            let bytes = |in_place| match told.has(in_place) {
                true => elements.bytes,
                false => 4 * self.part,
            };
            let into = combine.gives_to(rank).then(|| bytes(OUTPUT_IN_PLACE));
            return (Some(bytes(INPUT_IN_PLACE)), into);
        }
        let from = match self.read_path(rank) {
            ReadPath::InPlace => Some(told.offset.saturating_add(told.len)),
            ReadPath::Staged => Some(2 * self.part),
            ReadPath::Private | ReadPath::Not => None,
        };
        let gives = self.shape.gives(self.own.rank, rank).1;
        let puts = told.has(OUTPUT_IN_PLACE) && gives > 0;
        (from, puts.then(|| told.at.saturating_add(gives)))
    }

    /// Returns the next steps, or `None` after the last ones, which end with a meeting.
    pub(crate) fn next(&mut self) -> Option<Schedule> {
        if self.round == self.rounds.max(1) {
            return None;
        }
        match self.columns() {
            Some((combine, elements)) => self.combine_shares(combine, elements),
            None => self.move_blocks(),
        }
        self.round += 1;
        Some(std::mem::take(&mut self.builder.schedule))
    }
}

/// Blocks that go through staging memory.
impl Plan {
    fn read_path(&self, from: u32) -> ReadPath {
        let expected = self.shape.takes(self.own.rank, from).len;
        match &self.told[from as usize] {
            _ if from == self.own.rank || expected == 0 => ReadPath::Not,
            told if told.has(INPUT_IN_PLACE) => ReadPath::InPlace,
            _ if self.own.output_in_place => ReadPath::Not,
            _ if self.reads => ReadPath::Private,
            _ => ReadPath::Staged,
        }
    }

    /// Returns true if others take from the staging memory of a member. All members get the same
    /// answer.
    fn is_staged(&self, giver: u32) -> bool {
        let mut takers = (0..).zip(&self.told).filter(|(rank, _)| *rank != giver);
        !self.told[giver as usize].has(INPUT_IN_PLACE) && takers.any(|(_, to)| to.wants_pieces())
    }

    fn move_blocks(&mut self) {
        let (round, last) = (self.round, self.rounds.saturating_sub(1));
        let moves = !matches!(self.shape, Shape::Combines(..));
        if round == 0 && moves {
            self.put();
            self.take(false);
        }
        let is_late = |rank: u32| {
            let told = &self.told[rank as usize];
            self.is_staged(rank) && told.longest > 0 && !told.has(STAGED)
        };
        if self.rounds > 0 && (round > 0 || (0..self.own.size).any(is_late)) {
            self.stage(round, Announcement::wants_pieces);
            self.builder.exchange(true);
        }
        match self.shape {
            Shape::Combines(_, elements) => self.combine_block(elements.bytes),
            _ => self.take(true),
        }
        if round == last {
            self.builder.exchange(false);
        }
    }

    /// Returns how much of a block with both ends in place the taker copies, from its start.
    fn cut(&self, len: u64) -> u64 {
        match &self.shape {
            Shape::Gather { .. } => 0,
            Shape::Broadcast { .. } => (len - len / u64::from(self.own.size)) / 64 * 64,
            _ => len,
        }
    }

    /// Puts this member's part of the blocks whose targets it can access: all of it if the takers
    /// cannot read it here.
    fn put(&mut self) {
        for to in self.others() {
            let (told, (offset, len)) =
                (self.told[to as usize], self.shape.gives(self.own.rank, to));
            let cut = match self.own.input_in_place {
                true => self.cut(len),
                false => 0,
            };
            if told.has(OUTPUT_IN_PLACE) {
                let from = span(INPUT, offset + cut, len - cut);
                let into = span(Memory::Into(to), told.at + cut, len - cut);
                self.builder.copy(from, into);
            }
        }
    }

    /// Takes what is accessible in place or in private memory, its own block last; or, if `staged`,
    /// a piece that all members have staged.
    fn take(&mut self, staged: bool) {
        let me = self.own.rank;
        for from in self.others().chain([me]) {
            let (mut take, way) = (self.shape.takes(me, from), self.read_path(from));
            if (way == ReadPath::Staged) != staged || (staged && from == me) {
                continue;
            }
            let offset = self.told[from as usize].offset;
            if self.own.output_in_place && from != me {
                take.len = self.cut(take.len);
            }
            let (memory, offset) = match way {
                ReadPath::InPlace => (Memory::From(from), offset),
                ReadPath::Private => (Memory::Private(from), offset),
                ReadPath::Not if from == me => (INPUT, self.shape.gives(me, me).0),
                ReadPath::Not => continue,
                ReadPath::Staged => {
                    let (start, end) = self.range(self.round, take.len);
                    (take.at, take.len) = (take.at + start, end - start);
                    (Memory::From(from), self.lane(self.round, me))
                }
            };
            let source = span(memory, offset, take.len);
            self.builder.copy(source, span(OUTPUT, take.at, take.len));
        }
    }

    /// Returns the bytes of a block of `len` that are staged in a round: from, to.
    fn range(&self, round: u64, len: u64) -> (u64, u64) {
        let start = round * self.piece;
        (start.min(len), (start + self.piece).min(len))
    }

    /// Returns the offset of the piece for a rank in the staging memory of its giver.
    fn lane(&self, round: u64, rank: u32) -> u64 {
        let lane = if self.shape.apart() {
            u64::from(rank)
        } else {
            0
        };
        (round & 1) * self.part + lane * self.piece
    }

    /// Fills a part of the staging memory with the piece of a round, for those who `want` it.
    fn stage(&mut self, round: u64, want: impl Fn(&Announcement) -> bool) {
        if self.own.input_in_place || self.staging().is_none() {
            return;
        }
        let mut filled = None;
        for to in self.others() {
            let (offset, len) = self.shape.gives(self.own.rank, to);
            let place = self.lane(round, to);
            // Without blocks of their own, all members take the same piece.
            if filled == Some(place) || !self.told.get(to as usize).is_none_or(&want) {
                continue;
            }
            let (start, end) = self.range(round, len);
            let from = span(INPUT, offset + start, end - start);
            self.builder.copy(from, span(STAGING, place, end - start));
            filled = (len > 0).then_some(place);
        }
    }

    /// Combines the block of this member, or a piece of it.
    fn combine_block(&mut self, bytes: u64) {
        let (start, end) = match self.rounds {
            0 => (0, bytes),
            _ => self.range(self.round, bytes),
        };
        let me = self.own.rank;
        let take = |rank: u32| {
            let (memory, at) = match self.read_path(rank) {
                ReadPath::Staged => (Memory::From(rank), self.lane(self.round, me)),
                ReadPath::InPlace => (Memory::From(rank), self.told[rank as usize].offset + start),
                ReadPath::Private | ReadPath::Not => (INPUT, self.shape.gives(me, me).0 + start),
            };
            Term::Take(span(memory, at, end - start))
        };
        let result = Term::Give(span(OUTPUT, start, end - start));
        let terms: Vec<Term> = (0..self.own.size).map(take).chain([result]).collect();
        self.builder.combine(terms);
    }
}

/// Vectors of which each member combines a share.
impl Plan {
    fn combine_shares(&mut self, combine: Combine, elements: Elements) {
        let round = self.round;
        if round > 0 {
            self.stage(round, |_| true);
            self.builder.exchange(true);
            self.fetch(combine, elements, round - 1);
        }
        let (start, len) = self.share(elements, round, self.own.rank);
        let mut terms = Vec::new();
        for rank in 0..self.own.size {
            let give = || {
                let gets = combine.gives_to(rank);
                gets.then(|| Term::Give(self.result(rank, start, len)))
            };
            // An exclusive scan gives a rank the result before its own vector, an inclusive one
            // after it.
            if combine == Combine::ExScan {
                terms.extend(give());
            }
            terms.push(Term::Take(self.vector(rank, start, len)));
            if combine == Combine::Scan {
                terms.extend(give());
            }
        }
        if let Combine::AllReduce | Combine::Reduce { .. } = combine {
            let getting = (0..self.own.size).filter(|rank| combine.gives_to(*rank));
            terms.extend(getting.map(|rank| Term::Give(self.result(rank, start, len))));
        }
        self.builder.combine(terms);
        // No later round fetches the results of the last one.
        if round + 1 == self.rounds {
            self.builder.exchange(false);
            self.fetch(combine, elements, round);
        }
    }

    /// Returns the share of a rank in the piece of a round: its start in the vector, and its
    /// length.
    fn share(&self, elements: Elements, round: u64, rank: u32) -> (u64, u64) {
        let (start, end) = self.range(round, elements.bytes);
        let len = end - start;
        // Whole cache lines, so that no two members write into the same line.
        let grain = match elements.size < 64 && 64 % elements.size == 0 {
            true => 64,
            false => elements.size,
        };
        let (at, share) = shares(len.next_multiple_of(grain), grain, self.own.size)(rank);
        let at = at.min(len);
        (start + at, share.min(len - at))
    }

    /// Returns the memory in which the vector of a rank is read.
    fn vector(&self, rank: u32, start: u64, len: u64) -> Span {
        let staged = (self.round & 1) * self.part + start - self.round * self.piece;
        match &self.told[rank as usize] {
            _ if rank == self.own.rank => span(INPUT, start, len),
            told if told.has(INPUT_IN_PLACE) => span(Memory::From(rank), start, len),
            _ => span(Memory::From(rank), staged, len),
        }
    }

    /// Returns the memory in which the result of a rank is written.
    fn result(&self, rank: u32, start: u64, len: u64) -> Span {
        match &self.told[rank as usize] {
            _ if rank == self.own.rank => span(OUTPUT, start, len),
            told if told.has(OUTPUT_IN_PLACE) => span(Memory::Into(rank), start, len),
            _ => span(Memory::Into(rank), self.out(self.round, start), len),
        }
    }

    /// Returns the offset of the results of a round in the staging memory.
    fn out(&self, round: u64, start: u64) -> u64 {
        (2 + (round & 1)) * self.part + start - round * self.piece
    }

    /// Fetches the results that the others have computed for this member.
    fn fetch(&mut self, combine: Combine, elements: Elements, round: u64) {
        if !combine.gives_to(self.own.rank) || self.own.output_in_place {
            return;
        }
        for rank in self.others() {
            let (at, len) = self.share(elements, round, rank);
            let from = span(STAGING, self.out(round, at), len);
            self.builder.copy(from, span(OUTPUT, at, len));
        }
    }
}

/// Returns the length of a half of the staging memory for `lanes` blocks at a time, in multiples of
/// `grain` bytes, and that of a piece of a block.
fn pieces(lanes: u32, grain: u64) -> (u64, u64) {
    let lanes = u64::from(lanes);
    let half = (STAGING_BYTES / 2).max(lanes * grain);
    (half, half / lanes / grain * grain)
}
