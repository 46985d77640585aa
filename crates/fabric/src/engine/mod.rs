//! The middle of the fabric: takes frames, moves operations on, says which frames to send.
//!
//! It never sees the transport while frames arrive ([`Sink`]): what it wants to send goes to the
//! outboxes and leaves at the end of the turn. A message that finds its receive posted is copied
//! once, straight from the frame.
//!
//! ```text
//!   Core::turn:  transport.poll --frames--> Engine::frame   (match, copy, queue answers)
//!                Engine::advance <--------- pieces of large messages
//!                Engine::flush   --frames--> transport.push
//! ```
//!
//! The protocols are in `proto/`, each file an `impl` of this type. The file is long because it has
//! the state that they all share, and what happens to it when a frame, a loss or an error comes.

mod leaving;
mod outbox;
#[cfg(test)]
mod tests;
mod unexpected;

use crate::matching::Matcher;
use crate::node::Membership;
use crate::ops::{ClaimWords, Ending, Key, Ops, Status, Then, Work};
use crate::peer::PeerMap;
use crate::proto::barrier::{Arrivals, Barriers};
use crate::proto::rma::Piece;
use crate::proto::view::Views;
use crate::route::Route;
use crate::rpc::Inbox;
use crate::transport::{Caps, Change, Completed, Incoming, Registration, RemoteKey, Sink};
use crate::wire::{kind, kinds};
use crate::{CostModel, Error, Mask, PeerId, PeerInfo};
use outbox::Outbox;
pub(crate) use outbox::{Budget, Queued};
use samite_mem::Corrupt;
use samite_mem::lease::LeasedBlock;
use samite_mem::ring::Body;
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
pub(crate) use unexpected::{Pace, UNPOLLED, weight};

/// A handler of active messages: takes the sender and the bytes, may return a reply.
pub(crate) type Handler = Box<dyn FnMut(PeerId, &[u8]) -> Option<Vec<u8>> + Send>;

/// A message that no receive was posted for.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// Its bytes are here; few of them without an allocation.
    Bytes(SmallVec<[u8; 64]>),
    /// Its bytes are with the sender.
    Offer(crate::wire::Offer),
    /// Its bytes are here, and its sender was this life of a number that another process has.
    Departed(u32, SmallVec<[u8; 64]>),
    /// A receive got it from this life of its sender, and a panic ended that receive before it
    /// could return it.
    Back(u32, SmallVec<[u8; 64]>),
}

/// What is known of a peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) info: Option<PeerInfo>,
    pub(crate) route: Route,
    /// Why nothing can be asked of it any more.
    pub(crate) gone: Option<Error>,
    /// Frames on their way that will be answered: bounds the replies that can queue at the peer.
    pub(crate) unanswered: u32,
    pub(crate) outbox: Outbox,
    /// How it wants its messages.
    pub(crate) pace: Pace,
    /// Bytes of its messages and signals that are kept here, and what it was told of that.
    unexpected: u64,
    told: Pace,
    /// Signals that nobody has waited for yet, by key; none at zero.
    signals: HashMap<u64, u64>,
    pub(crate) arrivals: Arrivals,
}

impl Peer {
    /// Whether something can be asked of it: it is there, and nothing has ended that. The one test
    /// of it.
    #[inline(always)]
    pub(crate) fn is_reachable(&self) -> bool {
        self.info.is_some() && self.gone.is_none()
    }

    /// Who it is, while something can be asked of it.
    pub(crate) fn reachable(&self) -> Option<&PeerInfo> {
        self.info.as_ref().filter(|_| self.is_reachable())
    }
}

impl PeerMap<Peer> {
    /// Who has, or had last, the number of a peer.
    #[inline(always)]
    pub(crate) fn info(&self, peer: PeerId) -> Option<&PeerInfo> {
        self.get(peer)?.info.as_ref()
    }

    /// Its process id; 0 if it was never heard of.
    pub(crate) fn pid(&self, peer: PeerId) -> i32 {
        self.info(peer).map_or(0, |info| info.pid)
    }
}

/// A segment that was dropped while somebody used it.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) segment: u32,
    pub(crate) block: LeasedBlock,
}

/// A segment that this process offers, for peers that cannot map it.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) generation: u32,
    pub(crate) bytes: Access,
    /// For RMA of peers that have asked for the key.
    pub(crate) registered: Option<(Registration, RemoteKey)>,
}

/// What peers may do with it.
#[derive(Debug)]
pub(crate) enum Access {
    /// Put, get and atomics.
    Shared(samite_mem::SharedBytes),
    /// Gets only.
    Reading(samite_mem::lease::Readable),
    /// Nothing: its owner has it for itself. The length.
    Withdrawn(u64),
}

impl Access {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Access::Shared(bytes) => bytes.len(),
            Access::Reading(bytes) => bytes.len(),
            Access::Withdrawn(bytes) => *bytes,
        }
    }
}

/// See the module's text.
pub(crate) struct Engine {
    pub(crate) me: PeerId,
    pub(crate) mask: Mask,
    pub(crate) eager_max: u64,
    pub(crate) costs: CostModel,
    pub(crate) node: Membership,
    pub(crate) ops: Ops,
    pub(crate) words: ClaimWords,
    pub(crate) matcher: Matcher<Key, Arrived>,
    pub(crate) views: Views,
    pub(crate) barriers: Barriers,
    pub(crate) peers: PeerMap<Peer>,
    pub(crate) active: VecDeque<Key>,
    pub(crate) handlers: HashMap<u16, Handler>,
    pub(crate) services: HashMap<u16, Arc<Mutex<Inbox>>>,
    pub(crate) offered: HashMap<u32, Offered>,
    /// What the transport's RMA is doing, by the id of it.
    pub(crate) pieces: HashMap<u64, Piece>,
    pub(crate) started_pieces: u64,
    /// Segments that were dropped while somebody had a lease on them.
    pub(crate) deferred: Vec<Deferred>,
    /// What is kept of processes whose numbers others have, in bytes.
    departed: u64,
    pub(crate) agent_lost: bool,
    /// How many changes of membership it has heard of; a peer that breaks the rules is one.
    pub(crate) changes: u64,
    /// What it did for others' puts and gets by messages.
    pub(crate) served: crate::Served,
    /// A posted receive got its message in this turn.
    pub(crate) fulfilled: bool,
    /// Bytes of messages that may be sent before the next look at what came ([`UNPOLLED`]).
    pub(crate) unpolled: u64,
    /// Somebody broke the rules: from now on frames are checked for whose they are.
    pub(crate) shut: bool,
    dirty: Vec<PeerId>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("me", &self.me)
            .field("ops", &self.ops)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn new(node: Membership, config: &crate::Config) -> Engine {
        let costs = config.costs.clone();
        let eager_max = config.eager_max.unwrap_or(costs.eager_max);
        Engine {
            me: node.peer(),
            mask: config.mask,
            eager_max,
            costs,
            ops: Ops::default(),
            words: ClaimWords::default(),
            matcher: Matcher::new(node.number),
            views: Views::default(),
            barriers: Barriers::default(),
            peers: PeerMap::new(node.number),
            node,
            active: VecDeque::new(),
            handlers: HashMap::new(),
            services: HashMap::new(),
            offered: HashMap::new(),
            pieces: HashMap::new(),
            started_pieces: 0,
            deferred: Vec::new(),
            departed: 0,
            agent_lost: false,
            changes: 0,
            served: crate::Served::default(),
            fulfilled: false,
            unpolled: UNPOLLED,
            shut: false,
            dirty: Vec::new(),
        }
    }

    pub(crate) fn peer(&mut self, peer: PeerId) -> &mut Peer {
        self.peers.entry(peer)
    }

    /// Whether this is a fork of the process that joined.
    #[inline(always)]
    pub(crate) fn is_of_parent(&self) -> bool {
        !self.node.heap.owner().is_current()
    }

    /// This is a fork of the process that joined: ends what was under way here, and touches nothing
    /// that is shared.
    fn forked(&mut self) {
        self.active.clear();
        self.dirty.clear();
        self.pieces.clear();
        for peer in self.peers.values_mut() {
            peer.gone = Some(Error::Forked);
            peer.outbox = Outbox::default();
        }
        for key in self.ops.pending(|_| true) {
            self.ops.finish(key, Err(Error::Forked));
        }
    }

    /// Why nothing can be asked of a peer, if so.
    #[inline]
    pub(crate) fn gone(&self, peer: PeerId) -> Option<Error> {
        if self.is_of_parent() {
            return Some(Error::Forked);
        }
        let known = self.peers.get(peer);
        if known.is_some_and(Peer::is_reachable) {
            return None;
        }
        let why = known.and_then(|known| known.gone.clone());
        Some(why.unwrap_or(Error::NoSuchPeer(peer)))
    }

    /// Why that life of a peer cannot be reached: it is lost when another process has its number by
    /// now, too.
    pub(crate) fn lost_life(&self, peer: PeerId, incarnation: u32) -> Option<Error> {
        let info = self.peers.info(peer);
        let is_another = info.is_some_and(|info| info.incarnation != incarnation);
        let lost = is_another.then_some(Error::PeerLost { peer, incarnation });
        lost.or_else(|| self.gone(peer))
    }

    /// A process that the agent has seen as this peer: if this one never did, it has come and gone
    /// in between.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if another process has its number by now.
    pub(crate) fn has_been(&mut self, peer: PeerId, incarnation: u32) -> Result<(), Error> {
        let lost = Error::PeerLost { peer, incarnation };
        let known = self.peers.get(peer);
        match known {
            Some(Peer {
                info: Some(info), ..
            }) if info.incarnation == incarnation => {}
            // One that broke the rules lives: what it may still write into is not freed here.
            Some(Peer {
                info: Some(_),
                gone: None | Some(Error::PeerCorrupt { .. }),
                ..
            }) => return Err(lost),
            _ => self.part(peer, lost),
        }
        Ok(())
    }

    /// Who lives and is wanted, by peer number: those that were announced, and those of other nodes
    /// that may be.
    pub(crate) fn living(&self, is_wanted: impl Fn(&PeerInfo) -> bool) -> Vec<PeerInfo> {
        let known = self.peers.iter().filter_map(|(_, peer)| peer.reachable());
        let mut living: Vec<PeerInfo> = known.filter(|info| is_wanted(info)).cloned().collect();
        let is_unknown = |peer: &Peer| peer.info.is_none() && peer.gone.is_none();
        let is_new = |info: &PeerInfo| self.peers.get(info.peer).is_none_or(is_unknown);
        let others = &self.node.others;
        living.extend(others.living(|info| is_new(info) && is_wanted(info)));
        living.sort_unstable_by_key(|info| info.peer);
        living
    }

    /// The life of a peer that is known here.
    #[inline(always)]
    pub(crate) fn incarnation(&self, peer: PeerId) -> u32 {
        self.peers.info(peer).map_or(0, |info| info.incarnation)
    }

    /// A message has its receive: its payload is copied straight into the buffer.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, key: Key, from: PeerId, tag: u64, body: &Body<'_>) {
        self.deliver_of(key, (from, self.incarnation(from)), tag, body);
    }

    /// As [`Engine::deliver`], of a life of its sender's number.
    #[inline(always)]
    pub(crate) fn deliver_of(
        &mut self,
        key: Key,
        (from, incarnation): (PeerId, u32),
        tag: u64,
        body: &Body<'_>,
    ) {
        let status = Status {
            from,
            incarnation,
            tag,
            len: body.len(),
        };
        let Some(op) = self.ops.get(key) else { return };
        let result = match &mut op.work {
            Work::Receive { buf } => {
                if let Err(error) = status.within(buf.len()) {
                    return self.ops.finish(key, Err(error));
                }
                buf.fill(0, body);
                if op.detached {
                    self.ops.forget(key); // Nobody asks how it ended: the loan comes back.
                    return;
                }
                let Work::Receive { buf } = std::mem::replace(&mut op.work, Work::None) else {
                    return;
                };
                Ok(crate::ops::Outcome::Received(status, buf.into_owned()))
            }
            Work::ReceiveAny { .. } => {
                let bytes = crate::ops::Viewed::Copied(body.to_vec());
                Ok(crate::ops::Outcome::Viewed(status, bytes))
            }
            _ => return,
        };
        self.ops.finish(key, result);
    }

    /// Whether something waits to be sent or moved on.
    #[inline(always)]
    pub(crate) fn is_busy(&self) -> bool {
        !self.active.is_empty() || !self.dirty.is_empty()
    }

    /// Whether a message may go past the matcher to a blocking receive: nothing is under way or
    /// kept. Once somebody broke the rules, every frame is checked for whose it is, which is done
    /// in [`Sink::frame`].
    #[inline(always)]
    pub(crate) fn may_bypass(&self) -> bool {
        !self.is_busy() && self.matcher.unexpected_len() == 0 && !self.shut
    }

    /// Whether something waits in an outbox.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Moves large messages on by a piece each; how many moved.
    pub(crate) fn advance(&mut self, transport: &mut crate::transport::AnyTransport) -> usize {
        let mut moved = 0;
        for _ in 0..self.active.len() {
            let Some(key) = self.active.pop_front() else {
                break;
            };
            let step = match self.ops.get(key).map(|op| &op.work) {
                Some(Work::Stream { .. }) => self.stream(key, transport),
                Some(Work::Assist { .. }) => self.assist(key),
                Some(Work::Pull(_)) => self.pull(key),
                _ => Step::Done,
            };
            match step {
                Step::Moved => {
                    moved += 1;
                    self.active.push_back(key);
                }
                Step::Stuck => self.active.push_back(key),
                Step::Done => moved += 1,
            }
        }
        moved
    }

    /// A peer can no longer be asked for anything: ends, in order, what depends on it.
    fn part(&mut self, peer: PeerId, error: Error) {
        // Whoever waits for the peer by something that it does looks again.
        self.changes += 1;
        let state = self.peer(peer);
        state.gone = Some(error.clone());
        state.outbox = Outbox::default();
        state.route.kernel = None;
        state.unanswered = 0;
        let alive = !matches!(error, Error::PeerLost { .. });
        self.views.part(peer);
        self.matcher.take_directed(peer);
        self.drop_unexpected(peer, |arrived| matches!(arrived, Arrived::Offer(_)));
        for key in self.ops.pending(|op| op.peer == Some(peer)) {
            self.fail(key, error.clone(), alive);
        }
    }

    /// Ends an operation early. `alive`: the peer may still touch what the operation shares with
    /// it.
    pub(crate) fn fail(&mut self, key: Key, error: Error, alive: bool) {
        let is_of_parent = self.is_of_parent();
        let Some(op) = self.ops.get(key).filter(|op| !op.has_ended()) else {
            return;
        };
        if is_of_parent {
            return self.ops.finish(key, Err(error));
        }
        let peer = op.peer;
        if let Work::Collect(collect) = &op.work
            && alive
            && collect.then == Then::Complete
        {
            let (from, send) = (collect.status.from, collect.send);
            self.post(from, kind::REFUSED, send, &[]);
            return self.ops.finish(key, Err(error));
        }
        let word = match &mut op.work {
            Work::Pull(pull) if alive => {
                if pull.let_go() {
                    self.end_pull(key, Err(error));
                } else {
                    // The sender is copying its last piece: the buffer is kept until it is quiet
                    // (C2).
                    pull.ending = Some(Ending::Fail(error));
                }
                return;
            }
            Work::Send { word, .. } => word.take(),
            Work::Withdrawn { word, .. } => Some(*word),
            Work::Assist { word, .. } => Some(*word),
            _ => None,
        };
        match word {
            // A living receiver may still look at the word: it is kept until `ATS` comes.
            Some(word) if alive => {
                use samite_mem::copy::cooperative::Claim;
                Claim::new(self.words.word(word), 0).revoke();
                let withdrawn = Work::Withdrawn { word, send: key };
                let orphan = self.ops.add(peer, "a withdrawn send", withdrawn);
                self.ops.detach(orphan);
            }
            Some(word) => self.words.give_back(word),
            None => {}
        }
        self.ops.finish(key, Err(error));
    }

    fn joined(&mut self, info: PeerInfo, caps: Caps) {
        let id = info.peer;
        let route = self.new_route(&info, caps);
        // What an earlier life of this number said is not said by this one; nor did it signal.
        self.keep_last_words(id);
        *self.peer(id) = Peer {
            info: Some(info),
            route,
            ..Peer::default()
        };
    }

    pub(crate) fn corrupt(&mut self, peer: PeerId, what: &'static str, value: u64) {
        tracing::warn!(%peer, what, value, "a peer broke the rules; nothing more is taken from it");
        self.shut = true;
        self.part(
            peer,
            Error::PeerCorrupt {
                peer,
                what: Corrupt { what, value },
            },
        );
    }
}

/// What a step of a large message did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something; there is more to do.
    Moved,
    /// Nothing: it waits for the other side.
    Stuck,
    /// It is complete.
    Done,
}

impl Sink for Engine {
    #[inline(always)]
    fn frame(&mut self, frame: Incoming<'_>) {
        if self.shut && matches!(self.peer(frame.from).gone, Some(Error::PeerCorrupt { .. })) {
            return;
        }
        // Short messages have their branch here, before the table: it is inlined.
        let taken = match frame.kind {
            kind::EAGER => self.eager_arrived(&frame),
            _ => self.arrived(&frame),
        };
        // Frames are read once; one that makes no sense ends the connection with its sender.
        if let Err(what) = taken {
            self.corrupt(frame.from, what, frame.kind as u64);
        }
    }

    fn completed(&mut self, completed: Completed) {
        self.piece_completed(completed);
    }

    /// Whoever waited for the last posted receive should look now. Frames that nobody has asked for
    /// yet stay in their rings until the next turn: taken later, most of them will be expected, and
    /// are copied once instead of twice.
    #[inline(always)]
    fn satisfied(&self) -> bool {
        self.fulfilled && !self.matcher.has_posted()
    }

    fn change(&mut self, change: Change) {
        self.changes += 1;
        match change {
            Change::Joined(info, caps) => self.joined(info, caps),
            Change::Lost { peer, incarnation } => {
                self.part(peer, Error::PeerLost { peer, incarnation });
            }
            Change::Corrupt { peer, what } => self.corrupt(peer, what.what, what.value),
            Change::AgentLost => self.agent_lost = true,
            Change::Forked => self.forked(),
        }
    }
}

macro_rules! dispatch {
    ($($(#[$doc:meta])* $kind:ident = $number:literal, $does:ident,
        $handler:ident $(($whole:literal))?;)*) => {
        /// Hands a frame to the method that the table names.
        fn arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
            match frame.kind {
                $($number => self.$handler(frame $(, $whole)?),)*
                _ => Err("the kind of a frame"),
            }
        }
    };
}

impl Engine {
    kinds!(dispatch);

    fn signal_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        if frame.arg >= crate::proto::barrier::KEYS {
            return self.barrier_arrived(frame);
        }
        match self.peer(frame.from).signals.entry(frame.arg) {
            Entry::Occupied(mut count) => *count.get_mut() += 1,
            Entry::Vacant(count) => {
                count.insert(1);
                self.unexpected_more(frame.from, weight(0))?;
            }
        }
        Ok(())
    }

    /// Takes a signal, if one is there.
    pub(crate) fn take_signal(&mut self, from: PeerId, key: u64) -> bool {
        let Some(peer) = self.peers.get_mut(from) else {
            return false;
        };
        let Entry::Occupied(mut count) = peer.signals.entry(key) else {
            return false;
        };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
            self.unexpected_less(from, weight(0));
        }
        true
    }

    /// Whether one more request that will be answered may be on its way to a peer.
    pub(crate) fn has_credit(&mut self, to: PeerId) -> bool {
        let peer = self.peer(to);
        peer.unanswered < crate::proto::CREDITS && peer.outbox.has_capacity()
    }

    /// Whether one more request that takes no credit may wait for a peer.
    pub(crate) fn has_capacity(&mut self, to: PeerId) -> bool {
        self.peer(to).outbox.has_capacity()
    }

    /// Queues a frame that carries few bytes.
    pub(crate) fn post(&mut self, to: PeerId, kind: u8, arg: u64, inline: &[u8]) {
        self.queue(to, Queued::frame(kind, arg, inline, None));
    }

    /// Queues a frame with a body.
    pub(crate) fn post_body(
        &mut self,
        to: PeerId,
        kind: u8,
        arg: u64,
        inline: &[u8],
        body: Vec<u8>,
    ) {
        self.queue(to, Queued::frame(kind, arg, inline, Some(body)));
    }

    /// Queues a frame that will be answered by one reply: takes a credit, which that reply gives
    /// back.
    pub(crate) fn post_request(
        &mut self,
        to: PeerId,
        kind: u8,
        request: Key,
        inline: &[u8],
        body: Option<Vec<u8>>,
    ) {
        self.peer(to).unanswered += 1;
        self.queue(to, Queued::frame(kind, request, inline, body));
    }
}
