//! Operations in flight.

use crate::wire::Help;
use crate::{Error, PeerId};
use samite_mem::Block;
use samite_mem::lend::{ReadBuf, WriteBuf};

/// What a message was like when it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its sender.
    pub from: PeerId,
    /// Its tag.
    pub tag: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// How an operation ended well.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The buffer of a send may be used again.
    Sent(Option<Vec<u8>>),
    /// A message is in the buffer of the receive.
    Received(Status, Option<Vec<u8>>),
    /// A message that stays where it is until the view is dropped.
    Viewed(Status, Viewed),
    /// Bytes that came back (a reply, a get).
    Bytes(Vec<u8>),
    /// A word that came back (an atomic); 0 for a put.
    Word(u64),
}

/// Where a viewed message lies.
#[derive(Debug)]
pub(crate) enum Viewed {
    /// In the sender's segment: offset in the arena, and the send to be told.
    InPlace {
        offset: u64,
        send: u64,
        hold: crate::hold::Hold,
    },
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
    /// Waits for a message of any length; `view` leaves it where it is if that can be.
    ReceiveAny { view: bool },
    /// Copies a matched message out of the sender's memory.
    Pull(Box<Pull>),
    /// Takes fragments of a matched message.
    Collect(Box<Collect>),
    /// Waits for a reply to an active message.
    Reply,
    /// Waits for the rest of a long reply.
    ReplyParts { bytes: Vec<u8> },
    /// Waits for the bytes of a get.
    Get { buf: WriteBuf, got: u64 },
    /// Waits for the answers to a put (one per fragment) or an atomic.
    Answer { left: u64 },
    /// A send that was given up; waits until the receiver has let go of its claim word.
    Withdrawn { word: u32, send: Key },
    /// Nothing: its parts have moved on.
    None,
    /// It has ended; nobody has asked how yet.
    Done(Result<Outcome, Error>),
}

/// A message that comes in fragments.
#[derive(Debug)]
pub(crate) struct Collect {
    pub(crate) buf: WriteBuf,
    pub(crate) status: Status,
    /// The sender's operation.
    pub(crate) send: u64,
    pub(crate) got: u64,
    pub(crate) then: Then,
}

impl Work {
    /// Whether it is a request whose answer is awaited: one of the credits of its peer.
    pub(crate) fn takes_credit(&self) -> bool {
        matches!(
            self,
            Work::Reply | Work::ReplyParts { .. } | Work::Get { .. } | Work::Answer { .. }
        )
    }
}

/// A message being copied by this side, perhaps with the sender's help.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) buf: WriteBuf,
    pub(crate) status: Status,
    /// The sender's operation.
    pub(crate) send: u64,
    pub(crate) source: Source,
    /// Offset in the arena of the word that divides the pieces.
    pub(crate) claim: u64,
    pub(crate) piece: u64,
    pub(crate) then: Then,
    /// Why it is given up; the sender may still be copying its last piece.
    pub(crate) failing: Option<Error>,
}

/// Where a pulled message lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In the arena, at this offset: mapped here.
    Arena(u64),
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
    /// The one peer it depends on.
    pub(crate) peer: Option<PeerId>,
    /// Nobody holds a handle: free it when it is done.
    pub(crate) detached: bool,
    /// What it is, for messages about waits.
    pub(crate) what: &'static str,
    pub(crate) work: Work,
}

// Operations are moved into and out of the table on the way of every posted receive.
const _: () = assert!(size_of::<Op>() <= 112);

/// Index and order of an operation; what travels as "send" or "request".
pub(crate) type Key = u64;

impl Op {
    /// Whether it has ended.
    #[inline(always)]
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.work, Work::Done(_))
    }
}

/// The operations of a process: a table of slots that are used again.
///
/// Not a general-purpose slab: an operation is written into its slot field by field and ends in it.
/// Moving one as a whole, twice per message, took a quarter of the time of a posted receive.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    slots: Vec<Op>,
    free: Vec<u32>,
    order: u32,
}

impl Ops {
    #[inline(always)]
    pub(crate) fn add(&mut self, peer: Option<PeerId>, what: &'static str, work: Work) -> Key {
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
        slot.what = what;
        slot.work = work;
        index as u64 | (self.order as u64) << 32
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let free = Op {
            order: 0,
            peer: None,
            detached: false,
            what: "",
            work: Work::None,
        };
        self.slots.push(free);
        self.slots.len() as u32 - 1
    }

    #[inline(always)]
    pub(crate) fn get(&mut self, key: Key) -> Option<&mut Op> {
        let op = self.slots.get_mut((key & 0xffff_ffff) as usize)?;
        (op.order == (key >> 32) as u32).then_some(op)
    }

    /// Ends an operation; its buffer goes into the outcome or back to its owner.
    #[inline]
    pub(crate) fn finish(&mut self, key: Key, result: Result<Outcome, Error>) {
        let Some(op) = self.get(key) else { return };
        if op.detached {
            self.forget(key);
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

    /// Takes the result of an operation that is done; frees it.
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

    /// Nobody will ask for the result any more.
    #[inline]
    pub(crate) fn detach(&mut self, key: Key) {
        match self.get(key) {
            Some(op) if op.has_ended() => self.forget(key),
            Some(op) => op.detached = true,
            None => {}
        }
    }

    /// Operations that are not done, oldest first, which `which` wants.
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

/// Words of shared memory that divide and revoke large messages: one line each, from blocks of 64.
#[derive(Debug, Default)]
pub(crate) struct ClaimWords {
    blocks: Vec<Block>,
    free: Vec<u32>,
}

impl ClaimWords {
    const PER_BLOCK: u32 = 64;

    /// A zeroed word; `None` without memory for it (the message then travels as data).
    pub(crate) fn take(&mut self, heap: &samite_mem::Heap) -> Option<u32> {
        if self.free.is_empty() {
            let block = heap.block(Self::PER_BLOCK as u64 * samite_mem::LINE).ok()?;
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

    pub(crate) fn give_back(&mut self, index: u32) {
        self.free.push(index);
    }
}
