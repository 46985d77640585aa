//! Operations in flight.

use crate::node::ClaimWord;
use crate::wire::Help;
use crate::{Error, PeerId};
use samite_mem::lend::{ReadBuf, WriteBuf};
use samite_mem::{Block, SharedBytes};

/// What is known of a message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its sender.
    pub from: PeerId,
    /// The sender's incarnation. Its number may have been reassigned: the last messages of a
    /// process stay for receives of any source.
    pub incarnation: u32,
    /// Its tag.
    pub tag: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Status {
    /// Returns this status for a buffer of so many bytes.
    #[inline(always)]
    pub(crate) fn within(self, buffer: u64) -> crate::Result<Status> {
        if self.len > buffer {
            return Err(Error::Truncated {
                from: self.from.into(),
                tag: self.tag,
                message: self.len,
                buffer,
            });
        }
        Ok(self)
    }
}

/// The result of an operation that succeeded.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The buffer of a send may be reused.
    Sent(Option<Vec<u8>>),
    /// A message has arrived in the buffer of the receive.
    Received(Status, Option<Vec<u8>>),
    /// A message that stays in place until the view is dropped.
    Viewed(Status, Viewed),
    /// Returned bytes (a reply, a get).
    Bytes(Vec<u8>),
    /// A returned word (an atomic); 0 for a put.
    Word(u64),
}

/// Where a viewed message lies.
#[derive(Debug)]
pub(crate) enum Viewed {
    /// In a segment that is mapped here; `view` is the view's id.
    InPlace { bytes: SharedBytes, view: u64 },
    /// In a private copy.
    Copied(Vec<u8>),
}

/// What an operation still has to do.
#[derive(Debug)]
pub(crate) enum Work {
    /// Waits in the outbox, or for the receiver.
    Send {
        tag: u64,
        buf: ReadBuf,
        word: Option<u32>,
    },
    /// Sends fragments of a message that the receiver asked for.
    Stream {
        buf: ReadBuf,
        receive: u64,
        sent: u64,
    },
    /// Helps to copy a message from the back.
    Assist { buf: ReadBuf, word: u32, help: Help },
    /// Waits for a message.
    Receive { buf: WriteBuf },
    /// Waits for a message of any length; `view`: leaves it in place if possible.
    ReceiveAny { view: bool },
    /// Copies a matched message out of the sender's memory.
    Pull(Box<Pull>),
    /// Collects fragments of a matched message.
    Collect(Box<Collect>),
    /// Waits for a reply to an active message.
    Reply,
    /// A request that a service refused: its inbox is full, or there is no server yet.
    Refused { is_busy: bool },
    /// Waits for the rest of a long reply: `left` bytes.
    ReplyParts { bytes: Vec<u8>, left: u64 },
    /// Waits for the bytes of a get.
    Get { buf: WriteBuf, got: u64 },
    /// Waits for the answers to a put (one per fragment) or an atomic.
    Answer { left: u64 },
    /// A send that was given up; waits until the receiver no longer uses its claim word.
    Withdrawn { word: u32, send: Key },
    /// Nothing: its parts have moved on.
    None,
    /// It has ended; its result was not fetched yet.
    Done(Result<Outcome, Error>),
}

/// A message that arrives in fragments.
#[derive(Debug)]
pub(crate) struct Collect {
    pub(crate) buf: WriteBuf,
    pub(crate) status: Status,
    /// The sender's operation.
    pub(crate) send: u64,
    pub(crate) got: u64,
    pub(crate) then: Then,
}

/// A message being copied by this side, perhaps with the sender's help.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) buf: WriteBuf,
    pub(crate) status: Status,
    /// The sender's operation.
    pub(crate) send: u64,
    pub(crate) source: Source,
    /// The claim word, and its offset in the arena.
    pub(crate) claim: ClaimWord,
    pub(crate) claim_at: u64,
    pub(crate) piece: u64,
    pub(crate) then: Then,
    /// The sender was told where the buffer is. No other process writes into it.
    pub(crate) helped: bool,
    /// How it ends once the sender, which may still be copying its last piece, is quiet.
    pub(crate) ending: Option<Ending>,
}

/// What happens to a message that is not copied to its end.
#[derive(Debug)]
pub(crate) enum Ending {
    /// It fails.
    Fail(Error),
    /// It begins again as a stream.
    Stream,
}

/// Where a pulled message lies.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In a segment that is mapped here.
    Mapped(SharedBytes),
    /// At this address of the process: the kernel copies.
    Process { pid: i32, address: u64 },
}

/// What happens to a message when it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The receive is complete.
    Complete,
    /// It is an active message: its handler runs.
    Handle { handler: u16, request: u64 },
}

/// An operation.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) order: u32,
    /// The peer on which it depends.
    pub(crate) peer: Option<PeerId>,
    /// Nobody holds a handle: it is freed when it is done.
    pub(crate) detached: bool,
    /// The scope that started it, and gets its error if it ends detached; [`NO_SCOPE`] for none.
    pub(crate) scope: u16,
    /// Its name, for messages about waits.
    pub(crate) what: &'static str,
    pub(crate) work: Work,
}

// Operations are moved into and out of the table for every posted receive.
const _: () = assert!(size_of::<Op>() <= 112);

/// An operation that no scope started.
pub(crate) const NO_SCOPE: u16 = 0;

/// Index and order of an operation; sent as "send" or "request".
pub(crate) type Key = u64;

impl Op {
    /// Returns whether it has ended.
    #[inline(always)]
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.work, Work::Done(_))
    }
}

#[derive(Debug, Default)]
struct Scope {
    is_open: bool,
    error: Option<Error>,
}

/// The operations of a process: a table of reusable slots.
///
/// Not a general-purpose slab: an operation is written into its slot field by field and ends there.
/// Moving one as a whole, twice per message, took a quarter of the time of a posted receive.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    slots: Vec<Op>,
    free: Vec<u32>,
    order: u32,
    /// The open scopes, with the first error of each. A scope's number is its place here, from 1.
    scopes: Vec<Scope>,
}

impl Ops {
    #[inline(always)]
    pub(crate) fn add(&mut self, peer: Option<PeerId>, what: &'static str, work: Work) -> Key {
        self.add_with(peer, what, || work)
    }

    /// As [`Ops::add`], so that the compiler can make the work where it stays. `work` does not
    /// panic.
    #[inline(always)]
    pub(crate) fn add_with(
        &mut self,
        peer: Option<PeerId>,
        what: &'static str,
        work: impl FnOnce() -> Work,
    ) -> Key {
        // 0 is the order of a free slot.
        self.order = self.order.wrapping_add(1).max(1);
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        let slot = &mut self.slots[index as usize];
        slot.order = self.order;
        slot.peer = peer;
        slot.detached = false;
        slot.scope = NO_SCOPE;
        slot.what = what;
        // A free slot has no work, so there is nothing to drop.
        std::mem::forget(std::mem::replace(&mut slot.work, work()));
        index as u64 | (self.order as u64) << 32
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let free = Op {
            order: 0,
            peer: None,
            detached: false,
            scope: NO_SCOPE,
            what: "",
            work: Work::None,
        };
        self.slots.push(free);
        self.slots.len() as u32 - 1
    }

    #[inline(always)]
    pub(crate) fn get(&mut self, key: Key) -> Option<&mut Op> {
        let op = self.slots.get_mut((key & 0xffff_ffff) as usize)?;
        // A free slot has the order 0, and so may a key: that of a handle that had ended when it
        // was created, or one that a hostile peer made up.
        (op.order == (key >> 32) as u32 && op.order != 0).then_some(op)
    }

    /// Ends an operation; its buffer goes into the outcome or back to its owner.
    #[inline]
    pub(crate) fn finish(&mut self, key: Key, result: Result<Outcome, Error>) {
        let Some(op) = self.get(key) else { return };
        if op.detached {
            let scope = op.scope;
            self.forget(key);
            self.report(scope, result);
        } else {
            op.work = Work::Done(result);
        }
    }

    /// Frees an operation.
    #[inline(always)]
    pub(crate) fn forget(&mut self, key: Key) {
        let Some(op) = self.get(key) else { return };
        op.order = 0;
        op.work = Work::None;
        self.free.push((key & 0xffff_ffff) as u32);
    }

    /// Takes the result of an operation that is done, and frees it.
    #[inline]
    pub(crate) fn take(&mut self, key: Key) -> Option<Result<Outcome, Error>> {
        let op = self.get(key).filter(|op| op.has_ended())?;
        let work = std::mem::replace(&mut op.work, Work::None);
        self.forget(key);
        match work {
            Work::Done(done) => Some(done),
            _ => None,
        }
    }

    /// Detaches an operation: its result will not be fetched.
    #[inline]
    pub(crate) fn detach(&mut self, key: Key) {
        let Some(op) = self.get(key) else { return };
        op.detached = true;
        if op.has_ended()
            && let Work::Done(result) = std::mem::replace(&mut op.work, Work::None)
        {
            self.finish(key, result);
        }
    }

    /// Opens a scope; returns its number.
    ///
    /// # Panics
    /// If 65,535 scopes are open.
    #[inline]
    pub(crate) fn begin_scope(&mut self) -> u16 {
        let free = self.scopes.iter().position(|scope| !scope.is_open);
        let index = free.unwrap_or(self.scopes.len());
        let number = u16::try_from(index + 1).expect("fewer scopes are open at a time");
        if free.is_none() {
            self.scopes.push(Scope::default());
        }
        self.scopes[index].is_open = true;
        number
    }

    /// Closes a scope; returns the first error of an operation whose result was not fetched
    /// otherwise.
    #[inline]
    pub(crate) fn end_scope(&mut self, scope: u16) -> Option<Error> {
        std::mem::take(self.scope(scope)?).error
    }

    fn scope(&mut self, scope: u16) -> Option<&mut Scope> {
        self.scopes.get_mut(usize::from(scope).checked_sub(1)?)
    }

    /// Gives the result of an operation to a scope from now on, or (with [`NO_SCOPE`]) to nobody.
    pub(crate) fn belong(&mut self, key: Key, scope: u16) {
        if let Some(op) = self.get(key) {
            op.scope = scope;
        }
    }

    #[inline]
    fn report(&mut self, scope: u16, result: Result<Outcome, Error>) {
        let (Some(index), Err(error)) = (usize::from(scope).checked_sub(1), result) else {
            return;
        };
        if let Some(scope) = self.scopes.get_mut(index) {
            scope.error.get_or_insert(error);
        }
    }

    /// Returns the operations that are not done, unordered.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Op> {
        self.slots
            .iter()
            .filter(|op| op.order != 0 && !op.has_ended())
    }

    /// Returns the operations that are not done and that `which` selects, oldest first.
    pub(crate) fn pending(&self, which: impl Fn(&Op) -> bool) -> Vec<Key> {
        let mut keys: Vec<(u32, Key)> = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, op)| op.order != 0 && !op.has_ended() && which(op))
            .map(|(index, op)| (op.order, index as u64 | (op.order as u64) << 32))
            .collect();
        // `wrapping_sub` against the newest: the order survives the wrap of the counter.
        let newest = self.order;
        keys.sort_unstable_by_key(|(order, _)| std::cmp::Reverse(newest.wrapping_sub(*order)));
        keys.into_iter().map(|(_, key)| key).collect()
    }
}

/// Claim words, which divide and revoke large messages: one cache line each, from blocks of 64.
#[derive(Debug, Default)]
pub(crate) struct ClaimWords {
    blocks: Vec<Block>,
    free: Vec<u32>,
}

impl ClaimWords {
    const PER_BLOCK: u32 = 64;

    /// Takes a zeroed word; `None` without memory for it (the message is then streamed).
    pub(crate) fn take(&mut self, heap: &samite_mem::Heap) -> Option<u32> {
        if self.free.is_empty() {
            let block = heap
                .block_soon(Self::PER_BLOCK as u64 * samite_mem::LINE)
                .ok()?;
            let first = self.blocks.len() as u32 * Self::PER_BLOCK;
            self.blocks.push(block);
            self.free.extend((first..first + Self::PER_BLOCK).rev());
        }
        let index = self.free.pop()?;
        // ORDERING: Release pairs with the Acquire of the receiver that takes its first piece.
        self.word(index)
            .store(0, samite_mem::sync::Ordering::Release);
        Some(index)
    }

    fn place(&self, index: u32) -> (&Block, u64) {
        let block = &self.blocks[(index / Self::PER_BLOCK) as usize];
        (block, (index % Self::PER_BLOCK) as u64 * samite_mem::LINE)
    }

    pub(crate) fn word(&self, index: u32) -> &samite_mem::sync::AtomicU64 {
        let (block, at) = self.place(index);
        block.bytes().u64(at)
    }

    pub(crate) fn offset(&self, index: u32) -> u64 {
        let (block, at) = self.place(index);
        block.span().offset + at
    }

    /// Returns the word at an offset, if it is one of these.
    pub(crate) fn at(&self, offset: u64) -> Option<ClaimWord> {
        let block = self.blocks.iter().find(|block| {
            let span = block.span();
            (span.offset..span.end()).contains(&offset)
        })?;
        let at = offset - block.span().offset;
        let is_one = at.is_multiple_of(samite_mem::LINE);
        is_one.then(|| ClaimWord(block.bytes().slice(at, 8)))
    }

    pub(crate) fn give_back(&mut self, index: u32) {
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key 0 belongs to an operation that had ended when its handle was created; using it never
    /// reaches a slot.
    #[test]
    fn the_key_of_no_operation_frees_no_slot() {
        let mut ops = Ops::default();
        let first = ops.add(None, "first", Work::None);
        ops.forget(first);
        assert!(ops.get(0).is_none());
        ops.finish(0, Err(Error::Cancelled));
        ops.forget(0);
        ops.detach(0);
        let (a, b) = (
            ops.add(None, "a", Work::None),
            ops.add(None, "b", Work::None),
        );
        assert_ne!(a & 0xffff_ffff, b & 0xffff_ffff, "two operations in a slot");
        assert!(ops.get(a).is_some() && ops.get(b).is_some());
        assert!(ops.get(first).is_none());
    }
}
