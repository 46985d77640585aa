//! How frames travel between two peers. Everything above (tags, rendezvous, one-sided operations,
//! active messages) is built from frames.
//!
//! Only frames are mandatory. A transport that can do more says so in [`Caps`], and the layers
//! above choose accordingly. The contract suite checks that it maps and sleeps as declared, that
//! RMA is used where available, and that frames, and what follows a put, stay in order whatever the
//! transport does.
//!
//! # How to add one
//! 1. A folder next to `shm`, with a type that implements [`Transport`].
//! 2. A variant of `AnyTransport` below (a closed enum: one type in signatures, calls that inline).
//! 3. One line in `tests/suite/contract.rs` that runs the contract suite over it.
//! 4. A sentence in `samite info` that says when it is chosen and what to install when it is
//!    missing.
//!
//! `delayed` can be put before any of them: a link with latency and rate, for tests and
//! measurements.
//!
//! # What a transport promises
//! T1 Frames of one class between two peers arrive once and whole, and in the order of `push` if
//!    [`Caps::is_ordered`] is set. Otherwise the fabric puts them in order (`ordered`), and at
//!    most `ordered::KEPT_MAX` bytes of a peer's frames may overtake a frame of that peer.
//! T2 `push` copies what it is given; a refused push ([`Push::Full`]) has no effect.
//! T3 Replies find room even when requests do not (separate credits).
//! T4 A peer's frames are delivered before its loss is reported, and none afterwards.
//! T5 A [`Sleep`] ends when a frame or a change of membership may have arrived, or at its timeout.
//!    None is returned if something has arrived already: `announce_sleep` looks again after
//!    announcing the sleep.
//! T6 Every peer gets its turn: a poll takes a bounded number of frames from each, and after one
//!    that ends early ([`Sink::satisfied`]) the next one begins with the next peer.
//! T7 to T12, of RMA: [`rma`].
//! T13 A peer is announced ([`Change::Joined`]) before its first frame. Peers on this node are
//!    announced by the first poll after they joined; a peer on another node when this process first
//!    deals with it, at its first frame. Both are announced at once when they are
//!    [asked for](Transport::announce). A process hears nothing about other peers of other nodes,
//!    however many there are.

pub(crate) mod delayed;
mod lives;
pub(crate) mod ordered;
pub mod rma;
pub mod shm;
pub mod sim;
pub(crate) mod spanning;
#[cfg(feature = "testing")]
pub(crate) mod tampered;
pub(crate) mod ucx;

use crate::{PeerId, PeerInfo};
pub use rma::{Completed, NotStarted, Registration, RemoteKey, Rma, RmaAddress, RmaError, RmaVerb};
use samite_mem::ring::Body;
use samite_mem::{Corrupt, Doorbell, SharedBytes, WakeSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Which credits a frame uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Starts an operation.
    Request,
    /// Answers a request; must eventually find room.
    Reply,
}

/// Whether a frame was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// Accepted.
    Done,
    /// No room now; make progress and try again.
    Full,
    /// That peer is gone.
    Gone,
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Which credits it uses.
    pub class: Class,
    /// What it is; below 128.
    pub kind: u8,
    /// One word.
    pub arg: u64,
    /// A few bytes, at most [`Caps::inline_max`].
    pub inline: &'a [u8],
    /// Many bytes, at most [`Caps::body_max`]; empty for none.
    pub body: Body<'a>,
}

/// A frame that arrived.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The sender.
    pub from: PeerId,
    /// What it is.
    pub kind: u8,
    /// One word.
    pub arg: u64,
    /// The inline bytes, a private copy.
    pub inline: &'a [u8],
    /// The body, perhaps in memory that the sender can still write: copied once, then checked.
    /// Whatever the sender claimed, the transport has checked that it is at most [`Caps::body_max`]
    /// long, so memory may be allocated for it.
    pub body: Body<'a>,
}

/// A frame that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawFrame {
    /// Which credits it uses. Unknown for a frame that has arrived: then `Request`.
    pub class: Class,
    /// What it is.
    pub kind: u8,
    /// Its word.
    pub arg: u64,
    /// Its inline bytes.
    pub inline: Vec<u8>,
    /// Its body; empty for none.
    pub body: Vec<u8>,
}

impl RawFrame {
    pub(crate) fn of(frame: &Outgoing<'_>) -> RawFrame {
        RawFrame {
            class: frame.class,
            kind: frame.kind,
            arg: frame.arg,
            inline: frame.inline.to_vec(),
            body: frame.body.to_vec(),
        }
    }

    pub(crate) fn arrived(frame: &Incoming<'_>) -> RawFrame {
        RawFrame::of(&Outgoing {
            class: Class::Request,
            kind: frame.kind,
            arg: frame.arg,
            inline: frame.inline,
            body: frame.body,
        })
    }

    pub(crate) fn incoming(&self, from: PeerId) -> Incoming<'_> {
        Incoming {
            from,
            kind: self.kind,
            arg: self.arg,
            inline: &self.inline,
            body: Body::Slice(&self.body),
        }
    }

    /// Returns its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        (self.inline.len() + self.body.len()) as u64
    }
}

/// The capabilities between two peers; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Longest inline part of a frame without a body, in bytes.
    pub inline_max: u64,
    /// Longest body of a frame, in bytes.
    pub body_max: u64,
    /// Bytes of the fragments of a long message; 0: what is measured for shared memory.
    pub fragment: u64,
    /// Whether peers on this node map each other's memory (put, get and atomics are loads and
    /// stores).
    pub map: bool,
    /// Whether the kernel may copy between processes.
    pub kernel_copy: bool,
    /// Whether a waiting process sleeps without using the processor.
    pub sleeps: bool,
    /// Whether the transport reads and writes the peer's registered memory.
    pub rma: Rma,
    /// Whether its RMA does atomics, which are then atomic with those of the target's processors.
    pub atomics: bool,
    /// Whether frames of one class arrive in the order of `push`.
    pub is_ordered: bool,
    /// Whether the transport detects the loss of the peer itself; otherwise the agents report it.
    pub reports_loss: bool,
}

/// A change of membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A process has joined, with the capabilities between it and this one.
    Joined(PeerInfo, Caps),
    /// A process is lost.
    Lost {
        /// Who.
        peer: PeerId,
        /// Its incarnation.
        incarnation: u32,
    },
    /// A peer broke the rules of the transport; nothing more is accepted from it.
    Corrupt {
        /// Who.
        peer: PeerId,
        /// What was found.
        what: Corrupt,
    },
    /// The agent of the node has ended.
    AgentLost,
    /// This process is a fork of the one that joined: nothing is sent or received any more.
    Forked,
}

/// What the layer above does with arrivals. It has no access to the transport: what it wants to
/// send waits until the poll is over.
pub trait Sink {
    /// Takes one frame.
    fn frame(&mut self, frame: Incoming<'_>);
    /// Handles a change.
    fn change(&mut self, change: Change);
    /// Handles the end of an RMA operation (T8). Not called without RMA.
    fn completed(&mut self, _completed: Completed) {}
    /// Returns whether it has what it waited for, so that the poll should end now. This saves
    /// copies of unexpected messages; no frame is lost or passed over (T4, T6).
    #[inline(always)]
    fn satisfied(&self) -> bool {
        false
    }
}

/// The contract; see the module's documentation.
pub trait Transport {
    /// Returns its name, as in configuration.
    fn name(&self) -> &'static str;
    /// Returns the time since some fixed moment; virtual in the simulated network.
    fn now(&self) -> Duration;
    /// Returns the clock that all processes read alike which exchange frames.
    fn clock(&self) -> Clock {
        Clock::Machine
    }
    /// Sends a frame.
    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push;
    /// Delivers what has arrived; returns the number of frames and changes.
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize;
    /// Announces a peer that this process asks for and that has not been announced yet, or its
    /// loss (T13).
    fn announce<S: Sink>(&mut self, peer: PeerId, sink: &mut S);
    /// Announces that this process will sleep, then looks again, also for what the caller waits
    /// for; returns `None` if something has arrived. The sleep itself needs no access to the
    /// transport (T5).
    fn announce_sleep(&mut self, there: &mut dyn FnMut() -> bool) -> Option<Sleep>;
    /// Returns what wakes a peer on this node that waits for a word, if it is not its doorbell.
    fn waker(&self, _peer: PeerId) -> Option<sim::Waker> {
        None
    }
    /// Called when this process is about to leave, and is still a member: returns when peers have
    /// what it sent, or after some seconds. Frames that arrive meanwhile are dropped.
    fn leave(&mut self) {}
    /// Yields the processor to others.
    fn yield_now(&mut self);
    /// Returns whether spinning would take the processor from the process that is waited for.
    fn oversubscribed(&self) -> bool;
    /// Registers a range of this process's memory for RMA by peers that have the key; returns
    /// `None` without RMA.
    fn register(&mut self, _bytes: &SharedBytes) -> Option<(Registration, RemoteKey)> {
        None
    }
    /// Ends a registration (T11).
    fn deregister(&mut self, _registration: Registration) {}
    /// Starts an RMA operation to a peer; its end is reported with `id` (T8). An id may be reused
    /// only after that.
    ///
    /// # Errors
    /// [`Push::Full`] for now, or [`Push::Gone`], with the operation unchanged (T9).
    fn start(&mut self, _to: PeerId, _id: u64, verb: RmaVerb) -> Result<(), NotStarted> {
        Err(Box::new((Push::Gone, verb)))
    }
}

/// A sleep that was announced.
#[derive(Debug)]
pub enum Sleep {
    /// Until the doorbell rings.
    Bell(Doorbell<SharedBytes>),
    /// Until the doorbell rings, or a descriptor is readable.
    Descriptors(Doorbell<SharedBytes>, Arc<WakeSocket>, Arc<OwnedFd>),
    /// In virtual time.
    Virtual(sim::Turn),
    /// As the other one, at most for this long: then a frame is due that has arrived.
    Until(Box<Sleep>, Duration),
}

impl Sleep {
    /// Sleeps until something may have arrived, at most for the given time.
    pub fn sleep(self, at_most: Duration) {
        match self {
            Sleep::Bell(bell) => bell.sleep(at_most.min(shm::LONGEST_SLEEP)),
            Sleep::Descriptors(bell, socket, descriptor) => {
                let at_most = at_most.min(shm::LONGEST_SLEEP);
                bell.sleep_on(&socket, &[descriptor.as_fd()], at_most);
            }
            Sleep::Virtual(turn) => turn.pass(at_most),
            Sleep::Until(sleep, due) => sleep.sleep(at_most.min(due)),
        }
    }
}

/// A clock that all processes read alike which exchange frames.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The monotonic clock of the machine.
    Machine,
    /// The virtual time of the simulated network.
    Virtual(sim::VirtualClock),
}

impl Clock {
    /// Returns the time.
    pub fn now(&self) -> Duration {
        match self {
            Clock::Machine => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
            }
            Clock::Virtual(clock) => clock.now(),
        }
    }
}

/// All transports.
#[derive(Debug)]
pub(crate) enum AnyTransport {
    Shm(Box<shm::Shm>),
    Sim(Box<sim::Sim>),
    Ordered(ordered::Ordered),
    Delayed(Box<delayed::Delayed>),
    Spanning(Box<spanning::Spanning>),
    Ucx(Box<ucx::Ucx>),
    #[cfg(feature = "testing")]
    Tampered(Box<tampered::Tampered>),
}

/// Forwards a verb, by hand: the match disappears where the variant is known.
macro_rules! forward {
    ($self:ident . $verb:ident ( $($arg:expr),* )) => {
        match $self {
            AnyTransport::Shm(transport) => transport.$verb($($arg),*),
            AnyTransport::Sim(transport) => transport.$verb($($arg),*),
            AnyTransport::Ordered(transport) => transport.$verb($($arg),*),
            AnyTransport::Delayed(transport) => transport.$verb($($arg),*),
            AnyTransport::Spanning(transport) => transport.$verb($($arg),*),
            AnyTransport::Ucx(transport) => transport.$verb($($arg),*),
            #[cfg(feature = "testing")]
            AnyTransport::Tampered(transport) => transport.$verb($($arg),*),
        }
    };
}

impl Transport for AnyTransport {
    fn name(&self) -> &'static str {
        forward!(self.name())
    }
    #[inline]
    fn now(&self) -> Duration {
        forward!(self.now())
    }
    fn clock(&self) -> Clock {
        forward!(self.clock())
    }
    #[inline(always)]
    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        forward!(self.push(to, frame))
    }
    #[inline(always)]
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        forward!(self.poll(sink))
    }
    fn announce<S: Sink>(&mut self, peer: PeerId, sink: &mut S) {
        forward!(self.announce(peer, sink));
    }
    fn announce_sleep(&mut self, there: &mut dyn FnMut() -> bool) -> Option<Sleep> {
        forward!(self.announce_sleep(there))
    }
    fn waker(&self, peer: PeerId) -> Option<sim::Waker> {
        forward!(self.waker(peer))
    }
    fn leave(&mut self) {
        forward!(self.leave());
    }
    fn yield_now(&mut self) {
        forward!(self.yield_now());
    }
    fn oversubscribed(&self) -> bool {
        forward!(self.oversubscribed())
    }
    fn register(&mut self, bytes: &SharedBytes) -> Option<(Registration, RemoteKey)> {
        forward!(self.register(bytes))
    }
    fn deregister(&mut self, registration: Registration) {
        forward!(self.deregister(registration));
    }
    fn start(&mut self, to: PeerId, id: u64, verb: RmaVerb) -> Result<(), NotStarted> {
        forward!(self.start(to, id, verb))
    }
}
