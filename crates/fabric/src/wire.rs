//! The contents of frames. Numbers are little-endian and of fixed width, so that units with
//! different processors understand each other.

use crate::transport::Outgoing;
use samite_mem::ring::Body;

/// The table of the kinds of frames, passed to a macro that expands its rows: a name and a number,
/// which never change their meaning; the credits that the frame takes; and the method of the engine
/// that handles it on arrival.
///
/// * `ASKS`: the credits of requests; the frame stays in their order.
/// * `TELLS`: the credits of replies, so that it overtakes requests.
/// * `ANSWERS`: as `TELLS`, and it ends a request of the peer, or is a part of the frames that do.
macro_rules! kinds {
    ($make:ident) => {
        $make! {
            /// A whole message: arg = tag, bytes inline or in the body.
            EAGER = 1, ASKS, eager_arrived;
            /// Ready to send, a message to be fetched: arg = tag, inline = [`super::Offer`].
            RTS = 2, ASKS, offer_arrived;
            /// Send it as data: arg = send, inline = receive.
            STREAM = 3, TELLS, stream_wanted;
            /// Help copying: arg = send, inline = [`super::Help`].
            HELP = 4, TELLS, help_wanted;
            /// A fragment: arg = receive, inline = offset, body = bytes.
            DATA = 5, ASKS, data_arrived;
            /// Acknowledged, the message was taken (or will never be): arg = send.
            ATS = 6, TELLS, taken(true);
            /// The sender gave up: arg = send.
            WITHDRAW = 7, ASKS, withdrawn;
            /// An active message: arg = request (0: no reply), inline = handler, bytes inline or in
            /// the body.
            ACTIVE = 8, ASKS, active_arrived;
            /// A long active message to be fetched: arg = request, inline = [`super::Offer`],
            /// handler.
            ACTIVE_RTS = 9, ASKS, active_offer_arrived;
            /// Its reply, or a part of it: arg = request, inline = status, bytes still to come in
            /// further frames; bytes inline or in the body.
            REPLY = 10, ANSWERS, reply_arrived;
            /// A put: arg = request, inline = [`super::RemoteAddress`], body = bytes.
            PUT = 11, ASKS, put_arrived;
            /// A get: arg = request, inline = [`super::RemoteAddress`], length, offset in the
            /// request.
            GET = 12, ASKS, get_arrived;
            /// The reply to a get, or a part of it: arg = request, inline = offset in the request,
            /// bytes still to come in further frames of this answer; body = bytes.
            GET_REPLY = 13, ANSWERS, got_arrived;
            /// An atomic: arg = request, inline = [`super::RemoteAddress`], operation, two
            /// operands.
            ATOMIC = 14, ASKS, atomic_arrived;
            /// Answer to a put or atomic: arg = request, inline = status, word.
            ANSWER = 15, ANSWERS, answer_arrived;
            /// A signal: arg = key; those of barriers carry words inline
            /// ([`crate::proto::barrier`]).
            SIGNAL = 16, ASKS, signal_arrived;
            /// Updates of words: arg = request, inline = [`super::RemoteAddress`], operation, body
            /// = pairs of offset and operand.
            UPDATES = 17, ASKS, updates_arrived;
            /// Gets of elements: arg = request, inline = [`super::RemoteAddress`], size, offset in
            /// the request, body = offsets.
            GATHER = 18, ASKS, gather_arrived;
            /// How many unexpected messages may be sent: arg = [`crate::engine::Pace`].
            PACE = 19, TELLS, pace_arrived;
            /// The receive that matched a message was given up before the message was whole: arg =
            /// send.
            REFUSED = 20, TELLS, taken(false);
            /// A request for the remote key of a segment: arg = request, inline =
            /// [`super::RemoteAddress`].
            REMOTE_KEY = 21, ASKS, remote_key_wanted;
            /// A frame for a layer above ([`crate::upcall`]): arg = its word, inline = its head,
            /// bytes inline or in the body.
            UPCALL = 22, ASKS, upcall_arrived;
        }
    };
}
pub(crate) use kinds;

macro_rules! numbers {
    ($($(#[$doc:meta])* $kind:ident = $number:literal, $does:ident,
        $handler:ident $(($whole:literal))?;)*) => {
        $($(#[$doc])* pub(crate) const $kind: u8 = $number;)*

        #[inline(always)]
        const fn row(kind: u8) -> (Class, bool) {
            const ASKS: (Class, bool) = (Class::Request, false);
            const TELLS: (Class, bool) = (Class::Reply, false);
            const ANSWERS: (Class, bool) = (Class::Reply, true);
            match kind {
                $($number => $does,)*
                _ => panic!("nobody sends frames of a kind that is not in the table"),
            }
        }
    };
}

/// The numbers of the kinds of frames, and their properties from the table.
pub(crate) mod kind {
    use crate::transport::Class;

    kinds!(numbers);

    /// Returns which credits such a frame takes.
    #[inline(always)]
    pub(crate) const fn class(kind: u8) -> Class {
        row(kind).0
    }

    /// Returns whether it ends a request, or is a part of the frames that do: a peer's requests,
    /// and so these answers, are bounded by its credits.
    pub(crate) const fn is_answer(kind: u8) -> bool {
        row(kind).1
    }
}

/// Returns a frame to send, of a kind from the table.
#[inline(always)]
pub(crate) fn frame<'a>(kind: u8, arg: u64, inline: &'a [u8], body: Body<'a>) -> Outgoing<'a> {
    Outgoing {
        class: kind::class(kind),
        kind,
        arg,
        inline,
        body,
    }
}

/// Inline bytes, written and read word by word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<const N: usize>(pub(crate) [u64; N]);

impl<const N: usize> Words<N> {
    /// Returns the bytes to send.
    pub(crate) fn bytes(&self) -> Inline {
        const { assert!(N * 8 <= INLINE) };
        let mut inline = Inline {
            bytes: [0; INLINE],
            len: N * 8,
        };
        for (chunk, word) in inline.bytes.chunks_exact_mut(8).zip(&self.0) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        inline
    }

    /// Reads them; `None` if there are too few (the sender is broken).
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut words = [0; N];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().ok()?);
        }
        (bytes.len() >= N * 8).then_some(Words(words))
    }
}

const INLINE: usize = 48;

/// A few bytes for a frame, without an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inline {
    bytes: [u8; INLINE],
    len: usize,
}

impl std::ops::Deref for Inline {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Where the bytes of a message are until they are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The send.
    pub(crate) send: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Address in the sender's memory.
    pub(crate) address: u64,
    /// The segment in which the bytes lie ([`segment_word`]); 0: they are private.
    pub(crate) place: u64,
    /// Offset in the arena of the claim word, plus one; 0: none.
    pub(crate) claim: u64,
    /// Offset of the bytes in that segment.
    pub(crate) offset: u64,
}

/// Returns a segment of the sender's node ([`segment_id`](crate::node::segment_id)) and its
/// generation as a word that is not 0.
pub(crate) fn segment_word(id: u64, generation: u32) -> u64 {
    1 << 63 | id << 31 | generation as u64
}

/// Returns segment and generation of such a word; `None` for 0.
pub(crate) fn segment_of_word(word: u64) -> Option<(u64, u32)> {
    (word >> 63 != 0).then_some((word >> 31 & 0xffff_ffff, word as u32 & 0x7fff_ffff))
}

impl Offer {
    pub(crate) fn words(&self) -> Words<6> {
        Words([
            self.send,
            self.len,
            self.address,
            self.place,
            self.claim,
            self.offset,
        ])
    }
    pub(crate) fn read(bytes: &[u8]) -> Option<Offer> {
        let [send, len, address, place, claim, offset] = Words::<6>::read(bytes)?.0;
        // So later sums of a place and an offset inside the message cannot overflow.
        address.checked_add(len)?;
        Some(Offer {
            send,
            len,
            address,
            place,
            claim,
            offset,
        })
    }
}

/// What a sender needs to copy from the back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Help {
    /// Address of the buffer in the receiver's memory.
    pub(crate) address: u64,
    /// Bytes of the message that the receiver takes.
    pub(crate) len: u64,
    /// Bytes of a piece.
    pub(crate) piece: u64,
}

impl Help {
    pub(crate) fn words(&self) -> Words<3> {
        Words([self.address, self.len, self.piece])
    }
    pub(crate) fn read(bytes: &[u8]) -> Option<Help> {
        let [address, len, piece] = Words::<3>::read(bytes)?.0;
        address.checked_add(len)?;
        let countable =
            piece > 0 && len.div_ceil(piece) <= samite_mem::copy::cooperative::PIECES_MAX;
        countable.then_some(Help {
            address,
            len,
            piece,
        })
    }
}

/// A place in a segment of the receiver of the frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteAddress {
    pub(crate) segment: u32,
    pub(crate) generation: u32,
    /// The owner's incarnation to which the segment belongs: generations restart with each.
    pub(crate) incarnation: u32,
    pub(crate) offset: u64,
}

impl RemoteAddress {
    /// Returns the words to send, before the frame's own words.
    pub(crate) fn words(&self) -> [u64; 3] {
        let segment = self.segment as u64 | (self.generation as u64) << 32;
        [segment, self.incarnation as u64, self.offset]
    }

    /// Reads a place, and the words behind it.
    pub(crate) fn read<const N: usize>(bytes: &[u8]) -> Option<(RemoteAddress, [u64; N])> {
        let Words([segment, incarnation, offset]) = Words::read(bytes)?;
        let Words(rest) = Words::read(bytes.get(24..)?)?;
        let place = RemoteAddress {
            segment: segment as u32,
            generation: (segment >> 32) as u32,
            incarnation: incarnation.try_into().ok()?,
            offset,
        };
        Some((place, rest))
    }
}
