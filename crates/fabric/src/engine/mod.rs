//! The middle of the fabric: it takes frames, advances operations and decides which frames to send.
//!
//! It does not see the transport while frames arrive ([`Sink`]): what it wants to send goes to the
//! outboxes and leaves at the end of the turn. A message whose receive is already posted is copied
//! once, straight from the frame.
//!
//! ```text
//!   Core::turn:  transport.poll --frames--> Engine::frame   (match, copy, queue answers)
//!                Engine::advance <--------- pieces of large messages
//!                Engine::flush   --frames--> transport.push
//! ```
//!
//! The protocols are in `proto/`, each file an `impl` of this type. This file is long because it
//! holds the state that they share, and handles frames, losses and errors for all of them.

mod leaving;
mod outbox;
#[cfg(test)]
mod tests;
mod unexpected;

use crate::matching::Matcher;
use crate::node::{NodeMember, agent};
use crate::ops::{ClaimWords, Ending, Key, Ops, Outcome, Status, Then, Work};
use crate::peer::PeerMap;
use crate::proto::barrier::{Arrivals, Barriers};
use crate::proto::rma::Piece;
use crate::proto::view::Views;
use crate::route::Route;
use crate::rpc::Inbox;
use crate::transport::delayed::STAMPED;
use crate::transport::{Caps, Change, Completed, Incoming, Registration, RemoteKey, Sink};
use crate::wire::{kind, kinds};
use crate::{CostModel, Error, Expected, Mask, Match, Named, PeerId, PeerInfo, Whom};
use outbox::Outbox;
pub(crate) use outbox::{Budget, Queued};
use samite_mem::Corrupt;
use samite_mem::lease::LeasedBlock;
use samite_mem::ring::Body;
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
pub(crate) use unexpected::{Pace, UNPOLLED, weight};

/// A handler of active messages: takes the sender and the bytes, may return a reply.
pub(crate) type Handler = Box<dyn FnMut(PeerId, &[u8]) -> Option<Vec<u8>> + Send>;

/// A message that matched no posted receive.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// Its bytes are here; a few of them need no allocation.
    Bytes(SmallVec<[u8; 64]>),
    /// Its bytes are with the sender.
    Offer(crate::wire::Offer),
    /// Its bytes are here. Its sender was this incarnation of a number that has been reassigned.
    Departed(u32, SmallVec<[u8; 64]>),
    /// A receive took it from this incarnation of its sender, but a panic ended the receive before
    /// it could return it.
    Back(u32, SmallVec<[u8; 64]>),
}

/// What is known of a peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) info: Option<PeerInfo>,
    pub(crate) route: Route,
    /// Why it cannot be reached any more.
    pub(crate) gone: Option<Error>,
    /// Requests in flight that will be answered; this bounds the replies that can queue at the
    /// peer.
    pub(crate) unanswered: u32,
    pub(crate) outbox: Outbox,
    /// How it wants messages to be sent to it.
    pub(crate) pace: Pace,
    /// Bytes of its messages and signals that are kept here, and the pace that it was last told.
    unexpected: u64,
    told: Pace,
    /// Signals that nobody has waited for yet, by key; no entry is zero.
    signals: HashMap<u64, u64>,
    pub(crate) arrivals: Arrivals,
}

impl Peer {
    /// Returns whether the peer can be reached: it is known, and no error has ended the connection.
    /// This is the only test for it.
    #[inline(always)]
    pub(crate) fn is_reachable(&self) -> bool {
        self.info.is_some() && self.gone.is_none()
    }

    /// Returns its description while it can be reached.
    pub(crate) fn reachable(&self) -> Option<&PeerInfo> {
        self.info.as_ref().filter(|_| self.is_reachable())
    }
}

impl PeerMap<Peer> {
    /// Returns the process that has, or last had, a peer number.
    #[inline(always)]
    pub(crate) fn info(&self, peer: PeerId) -> Option<&PeerInfo> {
        self.get(peer)?.info.as_ref()
    }

    /// Returns its process id, or 0 if the peer is unknown.
    pub(crate) fn pid(&self, peer: PeerId) -> i32 {
        self.info(peer).map_or(0, |info| info.pid)
    }
}

/// A segment that was dropped while it was still in use.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) segment: u32,
    pub(crate) block: LeasedBlock,
}

/// A segment that this process offers to peers that cannot map it.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) generation: u32,
    pub(crate) bytes: Access,
    /// The registration for RMA by peers that have asked for the key.
    pub(crate) registered: Option<(Registration, RemoteKey)>,
}

/// What peers may do with an offered segment.
#[derive(Debug)]
pub(crate) enum Access {
    /// Put, get and atomics.
    Shared(samite_mem::SharedBytes),
    /// Gets only.
    Reading(samite_mem::lease::Readable),
    /// Nothing: its owner has exclusive access. Holds the length.
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

/// The state that all protocols share; see the module's documentation.
pub(crate) struct Engine {
    pub(crate) me: PeerId,
    pub(crate) mask: Mask,
    pub(crate) eager_max: u64,
    pub(crate) costs: CostModel,
    pub(crate) node: NodeMember,
    pub(crate) ops: Ops,
    pub(crate) words: ClaimWords,
    pub(crate) matcher: Matcher<Key, Arrived>,
    pub(crate) views: Views,
    pub(crate) barriers: Barriers,
    pub(crate) peers: PeerMap<Peer>,
    pub(crate) active: VecDeque<Key>,
    pub(crate) handlers: HashMap<u16, Handler>,
    pub(crate) services: HashMap<u16, Arc<Mutex<Inbox>>>,
    pub(crate) upcall: Option<Arc<dyn crate::upcall::Upcall>>,
    /// What arrived for the upcall before it was set.
    pub(crate) early: crate::upcall::Early,
    /// Whether the upcall has work.
    pub(crate) upcall_wanted: bool,
    /// Bytes of the frames that the layer of the upcall has sent.
    pub(crate) upcall_bytes: u64,
    pub(crate) offered: HashMap<u32, Offered>,
    /// RMA operations in flight in the transport, by id.
    pub(crate) pieces: HashMap<u64, Piece>,
    pub(crate) started_pieces: u64,
    /// Segments that were dropped while somebody held a lease on them.
    pub(crate) deferred: Vec<Deferred>,
    /// Bytes kept from processes whose numbers have been reassigned.
    departed: u64,
    pub(crate) agent_lost: bool,
    /// How many changes of membership it has seen; a peer that breaks the rules counts as one.
    pub(crate) changes: u64,
    /// What it did to serve puts and gets of others by messages.
    pub(crate) served: crate::Served,
    /// Whether a posted receive got its message in this turn.
    pub(crate) fulfilled: bool,
    /// Bytes of messages that may be sent before the next poll ([`UNPOLLED`]).
    pub(crate) unpolled: u64,
    /// Whether a peer broke the rules: from then on every frame's sender is checked.
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
    pub(crate) fn new(node: NodeMember, config: &crate::Config) -> Engine {
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
            upcall: None,
            early: Default::default(),
            upcall_wanted: false,
            upcall_bytes: 0,
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

    /// Returns whether this is a fork of the process that joined.
    #[inline(always)]
    pub(crate) fn is_of_parent(&self) -> bool {
        !self.node.heap.owner().is_current()
    }

    /// Ends all operations in a fork of the process that joined, without touching anything shared.
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

    /// Returns why a peer cannot be reached, if so.
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

    /// Gives the peers that an error names the names that are known of them.
    #[cold]
    pub(crate) fn named(&self, mut error: Error) -> Error {
        error.name_peers(|peer, incarnation| self.name_of(peer, incarnation));
        error
    }

    /// Returns the name of a peer for an error, if it is known.
    pub(crate) fn name_of(&self, peer: PeerId, incarnation: Option<u32>) -> Option<Arc<str>> {
        self.node.name_of(peer, incarnation)
    }

    /// Takes the result of an operation that is done, and frees it.
    #[inline]
    pub(crate) fn take(&mut self, key: Key) -> Option<Result<Outcome, Error>> {
        match self.ops.take(key)? {
            Ok(outcome) => Some(Ok(outcome)),
            Err(error) => Some(Err(self.named(error))),
        }
    }

    /// Returns the error of a wait that reached its deadline, for an operation if `key` says so.
    #[cold]
    pub(crate) fn timeout(
        &mut self,
        what: &'static str,
        whom: Whom,
        after: Duration,
        key: Option<Key>,
    ) -> Error {
        let mut error = Error::timeout(what, self.whom_of(whom, key), after);
        if let Error::Timeout { expected, .. } = &mut error {
            *expected = key.and_then(|key| self.expected(key)).map(Box::new);
        }
        self.named(error)
    }

    /// Returns whom a wait for an operation waits for, if it began as one for `whom`: a receive
    /// from any source knows its sender once a message has matched.
    pub(crate) fn whom_of(&mut self, whom: Whom, key: Option<Key>) -> Whom {
        let sender = key.and_then(|key| self.ops.get(key)?.peer);
        sender.map_or(whom, Whom::Peer)
    }

    /// Returns the message that an operation waits for.
    pub(crate) fn expected(&mut self, key: Key) -> Option<Expected> {
        match &self.ops.get(key)?.work {
            Work::Send { tag, .. } => Some(Expected::Receipt { tag: *tag }),
            Work::Collect(collect) => Some(Expected::Rest {
                tag: collect.status.tag,
            }),
            Work::Pull(pull) => Some(Expected::Rest {
                tag: pull.status.tag,
            }),
            Work::Receive { .. } | Work::ReceiveAny { .. } => {
                let Match { source, tag, mask } = self.matcher.find(|posted| *posted == key)?;
                let others = self.matcher.unexpected_tags(source);
                Some(Expected::Message { tag, mask, others })
            }
            _ => None,
        }
    }

    /// Returns why an incarnation of a peer cannot be reached. It is also lost when its number has
    /// been reassigned.
    pub(crate) fn lost_life(&self, peer: PeerId, incarnation: u32) -> Option<Error> {
        let info = self.peers.info(peer);
        let is_another = info.is_some_and(|info| info.incarnation != incarnation);
        let lost = is_another.then(|| self.named(lost(peer, incarnation)));
        lost.or_else(|| self.gone(peer))
    }

    /// Records a process that the agent has seen as this peer. If this process never saw it, it has
    /// joined and left in between.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if another process has the number by now.
    pub(crate) fn has_been(&mut self, peer: PeerId, incarnation: u32) -> Result<(), Error> {
        match self.peers.get(peer) {
            Some(Peer {
                info: Some(info), ..
            }) if info.incarnation == incarnation => {}
            // A peer that broke the rules is alive: what it may still write into is not freed here.
            Some(Peer {
                info: Some(_),
                gone: None | Some(Error::PeerCorrupt { .. }),
                ..
            }) => return Err(self.named(lost(peer, incarnation))),
            _ => self.part(peer, lost(peer, incarnation)),
        }
        Ok(())
    }

    /// Returns the living processes that are wanted, by peer number: those that were announced, and
    /// those of other nodes that may be.
    pub(crate) fn living(&self, is_wanted: impl Fn(&PeerInfo) -> bool) -> Vec<PeerInfo> {
        self.living_among(|_| true, is_wanted)
    }

    /// As [`Engine::living`], among the peers that `may` be. It takes less time for few of them.
    pub(crate) fn living_among(
        &self,
        may: impl Fn(PeerId) -> bool,
        is_wanted: impl Fn(&PeerInfo) -> bool,
    ) -> Vec<PeerInfo> {
        let known = self.peers.iter().filter_map(|(_, peer)| peer.reachable());
        let known = known.filter(|info| may(info.peer));
        let mut living: Vec<PeerInfo> = known.filter(|info| is_wanted(info)).cloned().collect();
        let is_unknown = |peer: &Peer| peer.info.is_none() && peer.gone.is_none();
        let is_new = |peer: PeerId| self.peers.get(peer).is_none_or(is_unknown);
        let others = &self.node.others;
        living.extend(others.living(|peer| may(peer) && is_new(peer), is_wanted));
        living.sort_unstable_by_key(|info| info.peer);
        living
    }

    /// Returns the incarnation of a peer that is known here.
    #[inline(always)]
    pub(crate) fn incarnation(&self, peer: PeerId) -> u32 {
        self.peers.info(peer).map_or(0, |info| info.incarnation)
    }

    /// Delivers a message to its receive: the payload is copied straight into the buffer.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, key: Key, from: PeerId, tag: u64, body: &Body<'_>) {
        self.deliver_of(key, (from, self.incarnation(from)), tag, body);
    }

    /// As [`Engine::deliver`], for a given incarnation of the sender.
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
                if let Err(mut error) = status.within(buf.len()) {
                    error.name_peers(|peer, _| self.name_of(peer, Some(incarnation)));
                    return self.ops.finish(key, Err(error));
                }
                buf.fill(0, body);
                if op.detached {
                    // Nobody asks for its result, so the buffer's loan ends here.
                    self.ops.forget(key);
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

    /// Returns whether anything waits to be sent or advanced.
    #[inline(always)]
    pub(crate) fn is_busy(&self) -> bool {
        !self.active.is_empty() || !self.dirty.is_empty()
    }

    /// Returns whether a message may bypass the matcher and go to a blocking receive: nothing is in
    /// progress or kept. Once a peer has broken the rules, every frame's sender is checked in
    /// [`Sink::frame`].
    #[inline(always)]
    pub(crate) fn may_bypass(&self) -> bool {
        !self.is_busy() && self.matcher.unexpected_len() == 0 && !self.shut
    }

    /// Returns whether anything waits in an outbox.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Advances each large message by one piece; returns how many advanced.
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

    /// Ends, in order, everything that depends on a peer that can no longer be reached.
    fn part(&mut self, peer: PeerId, error: Error) {
        // Waiters for something that the peer does must look again, and so must the layer above.
        self.changes += 1;
        self.upcall_wanted |= self.upcall.is_some();
        // Named now, because the number may belong to another process later.
        let error = self.named(error);
        let state = self.peer(peer);
        state.gone = Some(error.clone());
        state.outbox = Outbox::default();
        state.route.kernel = None;
        state.unanswered = 0;
        let alive = !matches!(error, Error::PeerLost { .. });
        self.barriers.has_stale |= !self.peer(peer).arrivals.is_empty();
        self.barriers.root_lost(peer, &error);
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
            // A living receiver may still read the word: it is kept until `ATS` arrives.
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
        self.node.learn_name(&info);
        let route = self.new_route(&info, caps);
        // Messages and signals of an earlier incarnation of this number do not belong to the new
        // one.
        self.keep_last_words(id);
        // A barrier with the new life can succeed.
        self.barriers.broken.retain(|(_, (lost, _))| *lost != id);
        let pace = match agent::is_agent(&info.identity) {
            true => Pace::Closed,
            false => Pace::Go,
        };
        *self.peer(id) = Peer {
            info: Some(info),
            route,
            pace,
            ..Peer::default()
        };
    }

    pub(crate) fn corrupt(&mut self, peer: PeerId, what: &'static str, value: u64) {
        let named = Named::new(peer, self.name_of(peer, None));
        tracing::warn!(peer = %named, what, value, "a peer broke the rules; nothing more is taken from it");
        self.shut = true;
        self.part(
            peer,
            Error::PeerCorrupt {
                peer: peer.into(),
                what: Corrupt { what, value },
            },
        );
    }
}

/// Returns the error for an incarnation of a peer that is gone.
pub(crate) fn lost(peer: PeerId, incarnation: u32) -> Error {
    Error::PeerLost {
        peer: peer.into(),
        incarnation,
    }
}

/// The result of one step of a large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It advanced, and there is more to do.
    Moved,
    /// It waits for the other side.
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
        // Short messages are handled here, before the table, so that their branch is inlined.
        let taken = match frame.kind {
            kind::EAGER => self.eager_arrived(&frame),
            _ => self.arrived(&frame),
        };
        // Frames are read once; an invalid one ends the connection with its sender.
        if let Err(what) = taken {
            self.corrupt(frame.from, what, frame.kind as u64);
        }
    }

    fn completed(&mut self, completed: Completed) {
        self.piece_completed(completed);
    }

    /// Returns whether the thread that waited for the last posted receive should look now.
    /// Unexpected frames then stay in their rings until the next turn: by then most of them will be
    /// expected, and are copied once instead of twice.
    #[inline(always)]
    fn satisfied(&self) -> bool {
        self.fulfilled && !self.matcher.has_posted()
    }

    fn change(&mut self, change: Change) {
        self.changes += 1;
        self.upcall_wanted |= self.upcall.is_some();
        match change {
            Change::Joined(info, caps) => self.joined(info, caps),
            Change::Lost { peer, incarnation } => {
                self.part(peer, lost(peer, incarnation));
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
        /// Passes a frame to the method that the table names.
        fn arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
            match frame.kind {
                $($number => self.$handler(frame $(, $whole)?),)*
                stamped if stamped & STAMPED != 0 => {
                    Err("a frame with the time of its departure; set fabric.link alike in both")
                }
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

    /// Takes a signal, if one has arrived.
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

    /// Returns whether one more request that will be answered may be sent to a peer.
    pub(crate) fn has_credit(&mut self, to: PeerId) -> bool {
        let peer = self.peer(to);
        peer.unanswered < crate::proto::CREDITS && peer.outbox.has_capacity()
    }

    /// Returns whether one more request that takes no credit may be queued for a peer.
    pub(crate) fn has_capacity(&mut self, to: PeerId) -> bool {
        self.peer(to).outbox.has_capacity()
    }

    /// Queues a frame that carries only a few bytes.
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

    /// Queues a frame that takes one reply: it takes a credit, which the reply returns.
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
