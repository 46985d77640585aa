//! Frames through shared memory on one node.
//!
//! ```text
//!   push(to)                                      poll()
//!     ring of the pair, in *our* heap  ------->     for every peer whose news bit is set:
//!     doorbell of the receiver: one load              one load of the line of the next frame
//! ```
//!
//! A ring is created by the sender at its first frame and published in the receiver's inbox, so
//! memory grows with the pairs that talk. The first body creates the ring's bulk area.
//!
//! # Invariants
//! H1 A ring belongs to one pair of incarnations. The agent does not reuse a dead peer's memory
//!    before every survivor has drained and dropped its rings (`Layout::set_seen_epoch`).
//! H2 A ring that breaks its rules is dropped and its peer reported as corrupt, once; the other
//!    rings continue.
//! H3 The news bit of a ring is cleared only after the ring was idle, and the ring is checked once
//!    afterwards (D2 of `samite_mem`'s doorbell).
//! H4 A fork of the process uses no ring, bell or table: it has copies of their handles but none of
//!    their memory (A5 of `samite_mem`'s arena), so each operation reports the fork.
//!
//! # Files
//! `mod` (the transport) · `inbound` (rings that others write) · `outbound` (rings that we write)

mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

use super::{Caps, Change, Outgoing, Push, Rma, Sink, Sleep, Transport};
use crate::PeerId;
use crate::node::{AgentWatch, Layout, NodeMember, Slot, State};
use inbound::InboundRing;
use outbound::OutboundRing;
use samite_mem::{Doorbell, Heap, NEWS_WORDS, OwnerProcess, SharedBytes};
use std::time::{Duration, Instant};

/// Longest body of a frame: the piece of a streamed message.
pub(crate) const BODY_MAX: u64 = 64 << 10;

/// The capabilities between any two processes of a node.
const CAPS: Caps = Caps {
    inline_max: samite_mem::ring::INLINE_BYTES as u64,
    body_max: BODY_MAX,
    fragment: 0,
    map: true,
    kernel_copy: true,
    sleeps: true,
    rma: Rma::None,
    atomics: false,
    is_ordered: true,
    reports_loss: true,
};

/// How often a process looks for what it is not notified of.
const LOOK_AROUND: Duration = Duration::from_millis(50);
/// The longest sleep before such a look; everything else wakes a sleeper at once. Not in unit
/// tests, where a lost wake-up should be noticed.
pub(super) const LONGEST_SLEEP: Duration = if cfg!(test) {
    Duration::MAX
} else {
    Duration::from_millis(100)
};

/// The transport; see the module's documentation.
#[derive(Debug)]
pub struct Shm {
    me: Slot,
    node: u32,
    owner: OwnerProcess,
    layout: Layout,
    heap: Heap,
    bell: Doorbell<SharedBytes>,
    inbound: Vec<Option<InboundRing>>,
    /// Peers whose rings are polled, in the order of their first frames; each once.
    polled: Vec<u32>,
    /// Index in `polled` of the ring with which the next poll begins.
    turn: usize,
    news_seen: [u64; NEWS_WORDS],
    outbound: Vec<Option<OutboundRing>>,
    /// When memory for a ring was last refused.
    refused: Option<Instant>,
    known: Vec<Option<u32>>,
    epoch_seen: u64,
    oversubscribed: bool,
    start: Instant,
    /// When it last looked for what it is not notified of.
    looked: Duration,
    agent: Option<AgentWatch>,
    polls: u32,
}

/// What [`Shm::meet`] found in the table.
enum Met {
    Announced,
    /// The entry is not complete.
    Nobody,
    /// The number has been reassigned meanwhile: the next poll looks again.
    Another,
}

impl Shm {
    /// Returns the transport of a process that has become peer `me` of the node behind `layout`.
    pub(crate) fn new(membership: &NodeMember, agent: Option<AgentWatch>) -> Shm {
        let NodeMember {
            me,
            number,
            layout,
            heap,
            ..
        } = membership.clone();
        Shm {
            me,
            node: number,
            owner: heap.owner(),
            bell: layout.doorbell(me),
            heap,
            inbound: Vec::new(),
            polled: Vec::new(),
            turn: 0,
            news_seen: [0; NEWS_WORDS],
            outbound: Vec::new(),
            refused: None,
            known: Vec::new(),
            epoch_seen: 0,
            oversubscribed: false,
            start: Instant::now(),
            looked: Duration::ZERO,
            agent,
            polls: 0,
            layout,
        }
    }

    /// Reads the table of peers after the epoch changed.
    pub(super) fn membership<S: Sink>(&mut self, sink: &mut S) -> usize {
        let epoch = self.layout.peers.epoch();
        let mut changes = 0;
        let mut is_whole = true;
        for peer in (0..self.layout.peers.used()).map(Slot) {
            let (state, incarnation) = self.layout.peers.state(peer);
            if self.known.len() <= peer.index() {
                self.known.resize(peer.index() + 1, None);
            }
            let before = self.known[peer.index()];
            if before.is_some_and(|b| b != incarnation || state != State::Alive) {
                changes += 1;
                self.lose(peer, sink);
            }
            // A peer that joined, sent and died between two looks still has its frames delivered
            // (T4).
            let had_its_say = state == State::Dead && self.look_for_ring(peer);
            if (state == State::Alive || had_its_say) && self.known[peer.index()].is_none() {
                match self.meet(peer, (state, incarnation), sink) {
                    Met::Announced => changes += 1,
                    Met::Nobody => continue,
                    Met::Another => {
                        is_whole = false;
                        continue;
                    }
                }
            }
            if had_its_say {
                self.lose(peer, sink);
            }
        }
        if changes > 0 {
            self.oversubscribed = self.count_crowd();
        }
        if !is_whole {
            return changes;
        }
        self.epoch_seen = epoch;
        // H1. Segments of the dead that are still in use have a lease, which the agent sees.
        self.layout.set_seen_epoch(self.me, epoch);
        changes
    }

    /// Announces a process that the table names in this state and incarnation.
    fn meet<S: Sink>(&mut self, peer: Slot, seen: (State, u32), sink: &mut S) -> Met {
        let info = self.layout.peers.info(peer);
        if self.layout.peers.state(peer) != seen {
            // The two incarnations must not be mixed.
            if let Some(slot) = self.inbound.get_mut(peer.index()) {
                *slot = None;
            }
            return Met::Another;
        }
        let Some(info) = info else {
            return Met::Nobody;
        };
        self.known[peer.index()] = Some(seen.1);
        // A bit that was seen for an earlier incarnation is checked again.
        self.news_seen[peer.index() / 64] &= !(1 << (peer.index() % 64));
        sink.change(Change::Joined(info, CAPS));
        Met::Announced
    }

    /// Returns whether more processes of the domain want our processors than there are. A process
    /// that may run on n processors counts as 1/n on each: pinned pairs do not crowd each other.
    fn count_crowd(&self) -> bool {
        let ours = self.layout.peers.cpus(self.me);
        let count = |cpus: &[u64]| cpus.iter().map(|word| word.count_ones()).sum::<u32>() as f64;
        let alive = (0..self.known.len()).filter(|peer| self.known[*peer].is_some());
        let demand: f64 = alive
            .map(|peer| {
                let theirs = self.layout.peers.cpus(Slot(peer as u32));
                let both: Vec<u64> = ours.iter().zip(&theirs).map(|(a, b)| a & b).collect();
                count(&both) / count(&theirs).max(1.0)
            })
            .sum();
        demand > count(&ours)
    }

    /// Delivers the last frames of a dead peer, then reports its loss (T4). The peer is forgotten
    /// only after that: if a handler panics in one of these frames, the next look continues with
    /// the others.
    fn lose<S: Sink>(&mut self, peer: Slot, sink: &mut S) {
        let Some(incarnation) = self.known[peer.index()] else {
            return;
        };
        // It may have died before the news bit of its first frame was seen.
        self.look_for_ring(peer);
        self.last_words(peer, sink);
        self.drop_inbound(peer);
        if let Some(slot) = self.outbound.get_mut(peer.index()) {
            *slot = None;
        }
        self.known[peer.index()] = None;
        sink.change(Change::Lost {
            peer: peer.of(self.node),
            incarnation,
        });
    }

    /// Checks now and then for what rings no bell: whether the agent is alive, and whether rings
    /// have frames that no news bit tells of. Every process can write the news bits.
    fn look_around<S: Sink>(&mut self, sink: &mut S) -> usize {
        let now = self.start.elapsed();
        if now - self.looked < LOOK_AROUND {
            return 0;
        }
        self.looked = now;
        self.look_at_all_rings();
        self.heap.tend();
        let lost = self.agent.as_ref().is_some_and(AgentWatch::sees_death);
        if lost {
            // Processes inside the agent's own process ended with it, and nothing else reports
            // them.
            let agent = self.layout.peers.agent_pid();
            let peers = (0..self.known.len()).map(|peer| Slot(peer as u32));
            let with_it: Vec<Slot> = peers
                .filter(|peer| *peer != self.me && self.known[peer.index()].is_some())
                .filter(|peer| {
                    self.layout
                        .peers
                        .info(*peer)
                        .is_some_and(|info| info.pid == agent)
                })
                .collect();
            for peer in with_it {
                self.lose(peer, sink);
            }
            sink.change(Change::AgentLost);
            // Only now: a handler may panic in the last frames of those.
            self.agent = None;
        }
        lost as usize
    }
}

impl Shm {
    /// As [`Transport::announce_sleep`], on the futex or on descriptors; returns the bell.
    pub(super) fn announce_sleep_as(
        &mut self,
        how: samite_mem::Sleep,
        there: &mut dyn FnMut() -> bool,
    ) -> Option<Doorbell<SharedBytes>> {
        if !self.owner.is_current() {
            return None; // H4: the bell is the parent's.
        }
        self.polls = u32::MAX; // The next poll looks around.
        self.bell.announce_sleep(how);
        if self.something_there() || there() {
            self.bell.end_sleep();
            return None;
        }
        Some(self.bell.clone())
    }
}

impl Transport for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    #[inline]
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    #[inline(always)]
    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        if !self.owner.is_current() {
            return Push::Gone; // H4
        }
        match self.outbound.get_mut(to.index_on(self.node)) {
            Some(Some(outbound)) => outbound.push(frame, self.me, &self.heap),
            _ => self.push_first(to, frame),
        }
    }

    #[inline(always)]
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        if !self.owner.is_current() {
            sink.change(Change::Forked); // H4
            return 0;
        }
        let mut arrived = self.poll_rings(sink);
        if !self.layout.peers.is_at(self.epoch_seen) {
            arrived += self.membership(sink);
        }
        arrived
    }

    /// One that has joined since the last poll.
    fn announce<S: Sink>(&mut self, peer: PeerId, sink: &mut S) {
        let index = peer.index_on(self.node);
        let is_new = matches!(self.known.get(index), None | Some(None));
        if !is_new || index >= self.layout.peers.used() as usize || !self.owner.is_current() {
            return;
        }
        let slot = Slot(index as u32);
        let (state, incarnation) = self.layout.peers.state(slot);
        if state == State::Alive {
            self.known.resize(self.known.len().max(index + 1), None);
            self.meet(slot, (state, incarnation), sink);
            self.oversubscribed = self.count_crowd();
        }
    }

    fn announce_sleep(&mut self, there: &mut dyn FnMut() -> bool) -> Option<Sleep> {
        let bell = self.announce_sleep_as(samite_mem::Sleep::Futex, there)?;
        Some(Sleep::Bell(bell))
    }

    fn yield_now(&mut self) {
        std::thread::yield_now();
    }

    fn oversubscribed(&self) -> bool {
        self.oversubscribed
    }
}
