//! A borrow that holds across processes.
//!
//! Behind a gate lies a block that its owner sometimes has for itself, as `&mut [T]`, and sometimes
//! lets others read, as `&[T]`. One word in shared memory says which, and counts who is inside:
//!
//! ```text
//!   Open, n inside      everybody copies in and out (SharedBytes); no references
//!   Reading, n inside   everybody may have `&[T]`; nobody writes
//!   Closed              the owner alone; nobody is inside and nobody gets in
//!   Lent, 0 or 1 inside one borrower alone, in whatever process: `&mut [T]`; not the owner
//! ```
//! It is a `RefCell` whose count is shared. Only the owner turns the gate, and only when nobody is
//! inside. A process that dies inside stays counted: the gate then no longer turns, and the owner
//! hears of it instead of taking what somebody may still write.
//!
//! # Invariants
//! G1 Who has a range of gated bytes has a [`Pass`] as long: it is part of the range's mapping, which
//!    all clones share, and counts once in the word.
//! G2 A pass is given only in the mode that it is for, by the compare-exchange that counts it. The gate
//!    turns by a compare-exchange from a count of 0. So in `Closed` there is no range at all, and in
//!    `Reading` there are only [`Readable`] ones.
//! G3 Only one [`Exclusive`] exists: it is made by the turn from another mode to `Closed`, by the owner,
//!    who has the only [`GatedBlock`].
//!    In `Lent` the compare-exchange that counts a pass is from a count of 0, and its range is never cloned,
//!    so there is one range at most.
//! G4 Ranges of a gated block are made by its gate only. [`GatedBlock`] never hands out its bytes
//!    otherwise; whoever makes ranges of an arena from offsets (the fabric's directory) knows which of
//!    them are gated and goes through the gate. Its owner does not drop a block while somebody is inside: the
//!    fabric keeps it until the count is zero.

use crate::sync::{AtomicU64, Ordering};

/// Who may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everybody, to copy in and out.
    Open = 0,
    /// Everybody, to read.
    Reading = 1,
    /// Nobody; the owner has it.
    Closed = 2,
    /// One at a time, to read and write.
    Lent = 3,
}

/// The word: generation in the high half, then the count, then two bits of mode.
const ONE: u64 = 4;
const HALF: u32 = 32;
const COUNT: u64 = u32::MAX as u64 & !(ONE - 1);

/// The word of a gate, wherever it is, and the generation of the block that it stands before: who still
/// is inside an earlier block in its place is not counted here.
#[derive(Debug)]
pub struct GateWord<'a>(pub &'a AtomicU64, pub u32);

impl GateWord<'_> {
    fn word(&self, mode: Mode) -> u64 {
        (self.1 as u64) << HALF | mode as u64
    }

    /// Owner: nobody inside, open.
    pub fn set_up(&self) {
        // ORDERING: Release pairs with the Acquire of `enter`: the block was made before.
        self.0.store(self.word(Mode::Open), Ordering::Release);
    }

    /// Counts one more inside, if the gate is in this mode.
    pub fn enter(&self, mode: Mode) -> bool {
        let enter = |word: u64| (word & !COUNT == self.word(mode)).then(|| word + ONE);
        // ORDERING: Acquire pairs with the Release of the owner's `turn`: what it wrote is visible.
        let entered = self
            .0
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, enter);
        entered.is_ok()
    }

    /// Comes in alone, if the gate is lent and nobody is inside.
    pub fn enter_alone(&self) -> bool {
        let empty = self.word(Mode::Lent);
        // ORDERING: Acquire pairs with the Release of the owner's `turn`, and with that of the `leave` of
        // who was inside before.
        let entered =
            self.0
                .compare_exchange(empty, empty + ONE, Ordering::Acquire, Ordering::Relaxed);
        entered.is_ok()
    }

    /// Counts one less.
    pub fn leave(&self) {
        let leave = |word: u64| (word >> HALF == self.1 as u64).then(|| word - ONE);
        // ORDERING: Release pairs with the Acquire of `turn`: what was done inside is done.
        let _ = self
            .0
            .fetch_update(Ordering::Release, Ordering::Relaxed, leave);
    }

    /// Owner: from one mode to another, when nobody is inside; else how many are.
    pub fn turn(&self, from: Mode, to: Mode) -> Result<(), u64> {
        // ORDERING: AcqRel pairs with `enter` and `leave`.
        let turned = self.0.compare_exchange(
            self.word(from),
            self.word(to),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        turned.map(drop).map_err(|word| (word & COUNT) / ONE)
    }
}

#[cfg(not(loom))]
pub use shared::{Exclusive, Gate, GatedBlock, Lent, Pass, Readable};

#[cfg(not(loom))]
mod shared {
    use super::{GateWord, Mode};
    use crate::{Arena, Block, Corrupt, Error, SharedBytes, Span};
    use bytemuck::Pod;

    /// What the beginning of every block is a multiple of, so that elements of any type are aligned.
    const ALIGN: u64 = 128;

    /// A gate, seen from any process.
    #[derive(Clone, Debug)]
    pub struct Gate {
        word: SharedBytes,
        generation: u32,
    }

    /// One inside; leaves when dropped.
    #[derive(Debug)]
    pub struct Pass(Gate);

    impl Drop for Pass {
        fn drop(&mut self) {
            self.0.word().leave();
        }
    }

    impl Gate {
        /// The gate whose word is at the beginning of `word`, 8 aligned bytes of shared memory, before the
        /// block of this generation.
        pub fn new(word: SharedBytes, generation: u32) -> Gate {
            Gate { word, generation }
        }

        fn word(&self) -> GateWord<'_> {
            GateWord(self.word.u64(0), self.generation)
        }

        fn range(
            &self,
            mode: Mode,
            arena: &Arena,
            span: Span,
        ) -> Result<Option<SharedBytes>, Error> {
            if !self.word().enter(mode) {
                return Ok(None);
            }
            let pass = Pass(self.clone());
            Ok(Some(block_at(arena, span)?.with_pass(pass)))
        }

        /// The block behind the gate, to copy in and out; `None` unless the gate is open.
        pub fn share(&self, arena: &Arena, span: Span) -> Result<Option<SharedBytes>, Error> {
            self.range(Mode::Open, arena, span)
        }

        /// The block behind the gate, for this borrower alone; `None` unless it is lent and nobody has it.
        pub fn borrow(&self, arena: &Arena, span: Span) -> Result<Option<Lent>, Error> {
            if !self.word().enter_alone() {
                return Ok(None);
            }
            let pass = Pass(self.clone());
            let bytes = block_at(arena, span)?.with_pass(pass);
            Ok(Some(Lent(bytes)))
        }

        /// The block behind the gate, to read; `None` unless the gate is in that mode.
        pub fn read(&self, arena: &Arena, span: Span) -> Result<Option<Readable>, Error> {
            Ok(self.range(Mode::Reading, arena, span)?.map(Readable))
        }
    }

    /// Bytes that nobody writes while this value or a clone of it lives.
    #[derive(Clone, Debug)]
    pub struct Readable(SharedBytes);

    impl Readable {
        /// Length in bytes.
        pub fn len(&self) -> u64 {
            self.0.len()
        }

        /// Whether there are no bytes.
        pub fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        /// The bytes as elements; what is left over at the end is not part of it.
        pub fn as_slice<T: Pod>(&self) -> &[T] {
            // SAFETY: G2: nobody writes while the pass of `self` is counted. The pointer is that of a
            // range in a live mapping (B1); it begins at a multiple of 128 bytes (`block_at`); any bytes are a `T`.
            unsafe { std::slice::from_raw_parts(self.0.pointer().cast(), elements::<T>(&self.0)) }
        }
    }

    /// Bytes that nobody else reads or writes while this value lives.
    #[derive(Debug)]
    pub struct Lent(SharedBytes);

    impl Lent {
        /// The bytes as elements; what is left over at the end is not part of it.
        pub fn as_slice<T: Pod>(&self) -> &[T] {
            // SAFETY: G2: the pass of `self` is the only one, and `self` cannot be cloned; else as in
            // `Readable::as_slice`.
            unsafe { std::slice::from_raw_parts(self.0.pointer().cast(), elements::<T>(&self.0)) }
        }

        /// The bytes as elements, to be changed.
        pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
            let count = elements::<T>(&self.0);
            // SAFETY: as in `as_slice`, and `&mut self` is the only way to the bytes in this process.
            unsafe { std::slice::from_raw_parts_mut(self.0.pointer().cast(), count) }
        }
    }

    /// Owner: a block with a gate in front of it.
    #[derive(Debug)]
    pub struct GatedBlock {
        block: Block,
        gate: Gate,
    }

    impl GatedBlock {
        /// A block behind `gate`, which is open.
        pub fn new(block: Block, gate: Gate) -> GatedBlock {
            gate.word().set_up();
            GatedBlock { block, gate }
        }

        /// Where it is.
        pub fn span(&self) -> Span {
            self.block.span()
        }

        /// Its gate.
        pub fn gate(&self) -> &Gate {
            &self.gate
        }

        /// Takes the block for the owner alone; else how many are still inside.
        pub fn close(self, from: Mode) -> Result<Exclusive, (GatedBlock, u64)> {
            match self.gate.word().turn(from, Mode::Closed) {
                Ok(()) => Ok(Exclusive(self)),
                Err(inside) => Err((self, inside)),
            }
        }

        /// Turns the gate without taking the block; else how many are still inside.
        pub fn turn(&self, from: Mode, to: Mode) -> Result<(), u64> {
            self.gate.word().turn(from, to)
        }
    }

    /// A block that its owner has for itself.
    #[derive(Debug)]
    pub struct Exclusive(GatedBlock);

    impl Exclusive {
        /// Opens the gate again, in this mode.
        pub fn open(self, mode: Mode) -> GatedBlock {
            // G3: nobody else turns it, so it is as this value left it.
            let _ = self.0.gate.word().turn(Mode::Closed, mode);
            self.0
        }

        /// The block for another use, behind another gate, which is open. The bytes stay as they are.
        pub fn renew(self, gate: Gate) -> GatedBlock {
            gate.word().set_up();
            GatedBlock {
                block: self.0.block,
                gate,
            }
        }

        /// The block as elements.
        pub fn as_slice<T: Pod>(&self) -> &[T] {
            let bytes = self.0.block.bytes();
            // SAFETY: G2 and G3: the gate is closed, so no other range of these bytes exists; else as
            // in `Readable::as_slice`.
            unsafe { std::slice::from_raw_parts(bytes.pointer().cast(), elements::<T>(bytes)) }
        }

        /// The block as elements, to be changed.
        pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
            let bytes = self.0.block.bytes();
            // SAFETY: as in `as_slice`, and `&mut self` is the only way to the bytes in this process.
            unsafe { std::slice::from_raw_parts_mut(bytes.pointer().cast(), elements::<T>(bytes)) }
        }
    }

    /// The bytes of a block, which another process may have described: inside the arena, and as blocks are aligned.
    fn block_at(arena: &Arena, span: Span) -> Result<SharedBytes, Error> {
        if !span.offset.is_multiple_of(ALIGN) {
            return Err(Error::Corrupt(Corrupt {
                what: "the beginning of a block",
                value: span.offset,
            }));
        }
        arena.bytes(span.offset, span.bytes)
    }

    fn elements<T>(bytes: &SharedBytes) -> usize {
        const {
            assert!(
                align_of::<T>() as u64 <= ALIGN,
                "blocks begin at multiples of 128 bytes"
            )
        };
        match size_of::<T>() {
            // Without bytes as many as anybody wants.
            0 => usize::MAX,
            size => bytes.len() as usize / size,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::heap::tests::heap;

        #[test]
        fn a_block_that_cannot_begin_there_is_not_taken() {
            let heap = heap(8 << 20);
            let word = heap.block(8).unwrap();
            let gate = Gate::new(word.bytes().clone(), 1);
            let block = GatedBlock::new(heap.block(256).unwrap(), gate.clone());
            let (arena, span) = (heap.arena().clone(), block.span());
            let odd = Span {
                offset: span.offset + 4,
                bytes: 64,
            };
            let is_refused = |error: Option<Error>| matches!(error, Some(Error::Corrupt(_)));
            assert!(is_refused(gate.share(&arena, odd).err()));
            block.turn(Mode::Open, Mode::Reading).unwrap();
            assert!(is_refused(gate.read(&arena, odd).err()));
            block.turn(Mode::Reading, Mode::Lent).unwrap();
            assert!(is_refused(gate.borrow(&arena, odd).err()));
            // Nobody is left inside.
            block.turn(Mode::Lent, Mode::Open).unwrap();
        }

        #[test]
        fn one_borrower_at_a_time() {
            let heap = heap(8 << 20);
            let word = heap.block(8).unwrap();
            let gate = Gate::new(word.bytes().clone(), 1);
            let block = GatedBlock::new(heap.block(64).unwrap(), gate.clone());
            let (arena, span) = (heap.arena().clone(), block.span());
            assert!(gate.borrow(&arena, span).unwrap().is_none(), "it is open");
            block.turn(Mode::Open, Mode::Lent).unwrap();
            let mut lent = gate.borrow(&arena, span).unwrap().expect("it is lent");
            assert!(gate.borrow(&arena, span).unwrap().is_none(), "one has it");
            assert!(gate.share(&arena, span).unwrap().is_none());
            assert!(gate.read(&arena, span).unwrap().is_none());
            assert_eq!(block.turn(Mode::Lent, Mode::Reading), Err(1));
            lent.as_mut_slice::<u64>()[7] = 9;
            drop(lent);
            assert_eq!(
                gate.borrow(&arena, span)
                    .unwrap()
                    .unwrap()
                    .as_slice::<u64>()[7],
                9
            );
            block.turn(Mode::Lent, Mode::Reading).unwrap();
            assert!(gate.borrow(&arena, span).unwrap().is_none(), "it is read");
            let read = gate.read(&arena, span).unwrap().expect("it may be read");
            assert_eq!(read.as_slice::<u64>()[7], 9);
        }

        #[test]
        fn nobody_is_inside_while_the_owner_has_it() {
            let heap = heap(8 << 20);
            let word = heap.block(8).unwrap();
            let gate = Gate::new(word.bytes().clone(), 7);
            let block = GatedBlock::new(heap.block(4096).unwrap(), gate.clone());
            let (arena, span) = (heap.arena().clone(), block.span());
            let open = gate.share(&arena, span).unwrap().expect("it is open");
            open.write(8, &7u64.to_le_bytes());
            let part = open.slice(0, 16);
            drop(open);
            assert!(gate.read(&arena, span).unwrap().is_none());
            let (block, inside) = block.close(Mode::Open).unwrap_err();
            assert_eq!(inside, 1, "a part of the range keeps its pass");
            drop(part);
            let mut own = block.close(Mode::Open).expect("nobody is inside");
            assert!(gate.share(&arena, span).unwrap().is_none());
            assert_eq!(own.as_slice::<u64>()[..2], [0, 7]);
            own.as_mut_slice::<u64>()[511] = 9;
            let block = own.open(Mode::Reading);
            let read = gate.read(&arena, span).unwrap().expect("it may be read");
            assert_eq!(read.as_slice::<u64>()[511], 9);
            assert!(gate.share(&arena, span).unwrap().is_none());
            assert_eq!(block.turn(Mode::Reading, Mode::Open), Err(1));
            drop(read);
            assert_eq!(block.turn(Mode::Reading, Mode::Open), Ok(()));
            let stale = gate.share(&arena, span).unwrap().expect("it is open");
            drop(block);
            let earlier = gate;
            let gate = Gate::new(word.bytes().clone(), 8);
            let next = GatedBlock::new(heap.block(64).unwrap(), gate.clone());
            assert!(earlier.share(&arena, span).unwrap().is_none());
            let one = gate
                .share(&arena, next.span())
                .unwrap()
                .expect("it is open");
            drop(stale);
            assert_eq!(
                next.turn(Mode::Open, Mode::Reading),
                Err(1),
                "it was not counted down"
            );
            drop(one);
            assert_eq!(next.turn(Mode::Open, Mode::Reading), Ok(()));
        }
    }
}
