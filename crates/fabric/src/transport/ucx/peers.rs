//! What is known of units of other nodes: their lives, what they have sent, who leaves and who is
//! lost. No bytes are sent here.

use super::super::lives::{Life, life_of};
use super::super::{Change, Incoming, Sink, ordered};
use super::head::{Control, Head, Kind};
use super::{BODY_MAX, CAPS};
use crate::PeerId;
use crate::node::{NodeMember, State};
use samite_mem::ring::Body;
use samite_ucx::EndpointId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Bytes of frames of lives that the agents have not reported yet, after which nothing more is read
/// from the network, and what each of them takes besides its bytes.
const EARLY_MAX: usize = 16 << 20;
const EARLY_ENTRY: usize = 128;
/// How long the agents may take to report a life. Then what it has sent is dropped, and so is all
/// that it sends later: it can only be lost.
const EARLY: Duration = Duration::from_secs(10);
/// Lives that are remembered for that.
const CUT_MAX: usize = 1024;
/// How long nothing has arrived from a peer whose loss is announced.
pub(super) const QUIET: Duration = Duration::from_millis(20);
/// How long it is waited for that, if something arrives all the time.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// The network is asked so often before that, if it always brings frames of others.
const LOOKS: u64 = 64;
/// How long a peer may be unreachable.
const UNREACHABLE: Duration = Duration::from_secs(5);
/// How long it takes until a peer that was given up is told so again.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// The units of other nodes; see the module's documentation.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) domain: u64,
    pub(super) me: PeerId,
    pub(super) node: NodeMember,
    pub(super) known: HashMap<PeerId, Known, foldhash::fast::RandomState>,
    early: VecDeque<Early>,
    early_bytes: usize,
    /// How many of them are from which life.
    early_of: HashMap<(PeerId, u32), usize>,
    /// Whether they are being looked at.
    looks_at_early: bool,
    /// Lives that the agents have not reported in time.
    cut: HashMap<PeerId, u32>,
    /// The epoch of which everything has been announced.
    pub(super) epoch_seen: Option<u64>,
    /// Peers whose loss is announced later.
    leaving: Vec<PeerId>,
    /// Lives that were given up and do not know it yet, and when they are told so.
    pub(super) given_up: Vec<(PeerId, u32, Instant)>,
    /// What is to be said to lives of peers.
    pub(super) answers: Vec<(PeerId, u32, Control)>,
    /// Ways that are not used any more.
    pub(super) unused: Vec<EndpointId>,
    pub(super) network: Looks,
    /// Frames that were not for this life, or of nobody.
    refused: u64,
}

/// A peer that was announced.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) incarnation: u32,
    pub(super) way: Option<EndpointId>,
    /// Frames to and from it.
    pub(super) sent: u64,
    arrived: u64,
    /// How many it had sent when it said that it leaves.
    leaves_after: Option<u64>,
    /// Whether it was told that this process leaves, and whether it has all that was sent to it.
    pub(super) knows_end: bool,
    pub(super) has_all: bool,
    pub(super) is_lost: bool,
    leaving: Option<Leaving>,
}

/// A peer whose loss is announced later.
#[derive(Debug)]
struct Leaving {
    why: Why,
    since: Instant,
    quiet: Quiet,
}

/// Why a peer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The agents say so.
    Told,
    /// It has given this process up.
    GaveUp,
    /// No way leads there.
    Unreachable,
}

/// How far the network was read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    /// How often it was asked for more, and whether it had nothing the last time in this poll.
    pub(super) count: u64,
    pub(super) is_empty: bool,
    /// Whether it is not asked, as too much waits here.
    pub(super) is_full: bool,
    /// Messages that were taken from the inbox, and that wait there.
    pub(super) taken: u64,
    pub(super) waiting: u64,
}

/// Since when nothing has arrived from a peer (U4).
#[derive(Clone, Copy, Debug)]
struct Quiet {
    since: Instant,
    looks: u64,
    /// Messages of which none may be from that peer.
    until: Option<u64>,
}

/// A frame of a life that the agents have not reported yet.
#[derive(Debug)]
struct Early {
    life: (PeerId, u32),
    since: Instant,
    header: Vec<u8>,
    body: Vec<u8>,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Done,
    /// The agents have not reported this life.
    TooEarly(PeerId, u32),
}

impl Quiet {
    fn begin(now: Instant, network: &Looks) -> Quiet {
        Quiet {
            since: now,
            looks: network.count,
            until: None,
        }
    }

    /// Returns whether nothing more can be expected: some time has passed, the network was read
    /// since, and so were the messages that it had brought.
    fn is_over(&mut self, now: Instant, network: &Looks) -> bool {
        if self.until.is_none() {
            // What waits may be for the end of this peer.
            let was_read =
                network.is_empty || network.is_full || network.count - self.looks >= LOOKS;
            if now - self.since < QUIET || !was_read {
                return false;
            }
            self.until = Some(network.taken + network.waiting);
        }
        self.until.is_some_and(|until| network.taken >= until)
    }
}

impl Known {
    /// Returns whether nothing is sent to it any more: it is lost, or will be.
    pub(super) fn is_over(&self) -> bool {
        let is_told = |leaving: &Leaving| leaving.why != Why::Unreachable;
        self.is_lost || self.leaving.as_ref().is_some_and(is_told)
    }

    /// Returns whether it will be lost.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }
}

impl Peers {
    pub(super) fn new(domain: u64, node: &NodeMember) -> Peers {
        Peers {
            domain,
            me: node.peer(),
            node: node.clone(),
            known: HashMap::default(),
            early: VecDeque::new(),
            early_bytes: 0,
            early_of: HashMap::new(),
            looks_at_early: false,
            cut: HashMap::new(),
            epoch_seen: None,
            leaving: Vec::new(),
            given_up: Vec::new(),
            answers: Vec::new(),
            unused: Vec::new(),
            network: Looks::default(),
            refused: 0,
        }
    }

    /// Returns after how long a poll is due although nothing arrives.
    pub(super) fn next_due(&self) -> Option<Duration> {
        if !self.leaving.is_empty() || !self.answers.is_empty() || self.is_full() {
            return Some(QUIET);
        }
        (!self.given_up.is_empty() || !self.early.is_empty()).then_some(AGAIN)
    }

    /// Returns whether nothing more may be read from the network (U2).
    pub(super) fn is_full(&self) -> bool {
        self.early_bytes > EARLY_MAX
    }

    /// Announces the loss of this peer later.
    fn leaves(&mut self, peer: PeerId, why: Why) {
        let Some(known) = self.known.get_mut(&peer).filter(|known| !known.is_lost) else {
            return;
        };
        let now = Instant::now();
        match &mut known.leaving {
            // What is certain replaces what is feared, and begins anew.
            Some(leaving) if leaving.why != Why::Unreachable || why == Why::Unreachable => return,
            Some(_) => {}
            None => self.leaving.push(peer),
        }
        known.leaving = Some(Leaving {
            why,
            since: now,
            quiet: Quiet::begin(now, &self.network),
        });
    }

    /// Takes note that no way leads to a peer.
    pub(super) fn cannot_reach(&mut self, peer: PeerId) {
        self.leaves(peer, Why::Unreachable);
    }

    /// Takes note that a way is broken. It may be opened again only to say that the peer is lost.
    pub(super) fn breaks(&mut self, way: EndpointId) {
        let mut all = self.known.iter_mut();
        let of_way = all.find(|(_, known)| known.way == Some(way));
        let Some((peer, known)) = of_way else { return };
        if known.is_lost {
            self.unused.extend(known.way.take());
            return;
        }
        let peer = *peer;
        self.cannot_reach(peer);
    }

    /// Returns whether a way to a peer is open.
    pub(super) fn has_way(&self, peer: PeerId) -> bool {
        self.known
            .get(&peer)
            .is_some_and(|known| known.way.is_some())
    }

    /// Returns whether this life is alive, as far as the agents know.
    pub(super) fn is_alive(&self, peer: PeerId, incarnation: u32) -> bool {
        self.node.others.state(peer) == Some((State::Alive, incarnation))
    }

    /// Announces the life of a peer that the agents reported last.
    pub(super) fn announce(&mut self, peer: PeerId, sink: &mut dyn Sink) {
        let Some(info) = self.node.others.info(peer) else {
            return;
        };
        let incarnation = info.incarnation;
        let known = Known {
            incarnation,
            way: None,
            sent: 0,
            arrived: 0,
            leaves_after: None,
            knows_end: false,
            has_all: false,
            is_lost: false,
            leaving: None,
        };
        let before = self.known.insert(peer, known);
        self.unused.extend(before.and_then(|before| before.way));
        sink.change(Change::Joined(info, CAPS));
        if self.cut.get(&peer) == Some(&incarnation) {
            self.cut.remove(&peer);
            self.cannot_reach(peer);
        }
    }

    /// Announces the present state of a peer, or its loss later.
    pub(super) fn look_at(&mut self, peer: PeerId, sink: &mut dyn Sink) {
        let Some((state, incarnation)) = self.node.others.state(peer) else {
            return;
        };
        let is_alive = state == State::Alive;
        if let Some(known) = self.known.get(&peer)
            && !known.is_lost
            && !(is_alive && known.incarnation == incarnation)
        {
            return self.leaves(peer, Why::Told);
        }
        let known = self.known.get(&peer);
        if is_alive && known.is_none_or(|known| known.incarnation != incarnation) {
            self.announce(peer, sink);
        }
    }

    /// Announces changes of the peers that were announced, and takes the frames that were waiting
    /// for them. Returns how many were delivered.
    pub(super) fn membership(&mut self, sink: &mut dyn Sink) -> usize {
        let epoch = self.node.layout.peers.epoch();
        if self.epoch_seen == Some(epoch) && !self.looks_at_early {
            return 0;
        }
        let all: Vec<PeerId> = self.known.keys().copied().collect();
        for peer in all {
            self.look_at(peer, sink);
        }
        self.epoch_seen = Some(epoch);
        let mut delivered = 0;
        // One by one: a panic of a handler loses no other, and the next poll goes on.
        self.looks_at_early = true;
        for _ in 0..self.early.len() {
            let Some(early) = self.take_early() else {
                break;
            };
            match self.try_take(&early.header, &early.body, sink) {
                Taken::Done => delivered += 1,
                Taken::TooEarly(..) => self.keep_early(early),
            }
        }
        self.looks_at_early = false;
        delivered
    }

    fn take_early(&mut self) -> Option<Early> {
        let early = self.early.pop_front()?;
        self.early_bytes -= early.bytes();
        if let Some(count) = self.early_of.get_mut(&early.life) {
            *count -= 1;
            if *count == 0 {
                self.early_of.remove(&early.life);
            }
        }
        Some(early)
    }

    fn keep_early(&mut self, early: Early) {
        self.early_bytes += early.bytes();
        *self.early_of.entry(early.life).or_default() += 1;
        self.early.push_back(early);
    }

    /// Takes a frame.
    pub(super) fn frame(&mut self, header: &[u8], body: &[u8], sink: &mut dyn Sink) {
        let taken = match self.sender_waits(header) {
            Some((peer, incarnation)) => Taken::TooEarly(peer, incarnation),
            None => self.try_take(header, body, sink),
        };
        if let Taken::TooEarly(peer, incarnation) = taken
            && self.cut.get(&peer) != Some(&incarnation)
        {
            let early = Early {
                life: (peer, incarnation),
                since: Instant::now(),
                header: header.to_vec(),
                body: body.to_vec(),
            };
            self.keep_early(early);
        }
    }

    /// Returns the sender of a frame if earlier frames of it wait.
    fn sender_waits(&self, header: &[u8]) -> Option<(PeerId, u32)> {
        if self.early.is_empty() {
            return None;
        }
        let (head, _) = Head::decode(header)?;
        let life = (head.from, head.incarnation);
        self.early_of.contains_key(&life).then_some(life)
    }

    /// Drops the frames of lives that the agents have not reported in time.
    pub(super) fn expire(&mut self, now: Instant) {
        let is_late = |early: &Early| now - early.since >= EARLY;
        if !self.early.front().is_some_and(is_late) {
            return;
        }
        let late = self.early.iter().take_while(|early| is_late(early));
        let late: HashSet<(PeerId, u32)> = late.map(|early| early.life).collect();
        self.early.retain(|early| !late.contains(&early.life));
        self.early_of.retain(|life, _| !late.contains(life));
        self.early_bytes = self.early.iter().map(Early::bytes).sum();
        for (peer, incarnation) in late {
            tracing::error!(%peer, incarnation, "no agent has reported a unit: its frames are dropped");
            if self.cut.len() < CUT_MAX || self.cut.contains_key(&peer) {
                self.cut.insert(peer, incarnation);
            }
        }
    }

    /// Delivers a frame, and announces its sender first.
    fn try_take(&mut self, header: &[u8], body: &[u8], sink: &mut dyn Sink) -> Taken {
        let own = self.node.incarnation;
        let is_right = |(head, inline): &(Head, &[u8])| {
            head.domain == self.domain
                && head.to == own
                && head.from.node() != self.me.node()
                && inline.len() as u64 <= CAPS.inline_max + ordered::PREFIX as u64
                && body.len() as u64 <= BODY_MAX
        };
        let Some((head, inline)) = Head::decode(header).filter(is_right) else {
            self.refused += 1;
            tracing::debug!(
                refused = self.refused,
                "a frame that is not for this process"
            );
            return Taken::Done;
        };
        let (peer, incarnation) = (head.from, head.incarnation);
        match self.life_of(peer, incarnation, sink) {
            Life::Known => {}
            Life::NotYet => return Taken::TooEarly(peer, incarnation),
            Life::Past | Life::Over => {
                self.heard_of_the_lost(peer, incarnation, head.kind);
                return Taken::Done;
            }
        }
        let network = self.network;
        let Some(known) = self.known.get_mut(&peer) else {
            return Taken::Done;
        };
        if let Some(leaving) = &mut known.leaving {
            leaving.quiet = Quiet::begin(Instant::now(), &network);
        }
        match head.kind {
            Kind::Frame(..) => known.arrived += 1,
            Kind::Control(Control::Bye) => known.leaves_after = Some(head.arg),
            Kind::Control(Control::Heard) => known.has_all |= known.knows_end,
            Kind::Control(Control::GivenUp) => {
                self.leaves(peer, Why::GaveUp);
                self.answer(peer, incarnation, Control::Noted);
                return Taken::Done;
            }
            Kind::Control(Control::Noted) => return Taken::Done,
        }
        if known.leaves_after.is_some_and(|sent| sent <= known.arrived) {
            known.leaves_after = None;
            self.answer(peer, incarnation, Control::Heard);
        }
        if let Kind::Frame(_, kind) = head.kind {
            sink.frame(Incoming {
                from: peer,
                kind,
                arg: head.arg,
                inline,
                body: Body::Slice(body),
            });
        }
        Taken::Done
    }

    /// Has something said to a life of a peer, once.
    fn answer(&mut self, peer: PeerId, incarnation: u32, what: Control) {
        let answer = (peer, incarnation, what);
        if !self.answers.contains(&answer) {
            self.answers.push(answer);
        }
    }

    /// Returns what is known of the life that has sent a frame, and announces it if it is new.
    fn life_of(&mut self, peer: PeerId, incarnation: u32, sink: &mut dyn Sink) -> Life {
        let announced = |peers: &Peers| {
            let known = peers.known.get(&peer)?;
            Some((known.incarnation, known.is_lost))
        };
        if announced(self) == Some((incarnation, false)) {
            return Life::Known;
        }
        self.look_at(peer, sink);
        let told = self.node.others.state(peer);
        let told = told.map(|(_, incarnation)| incarnation);
        let life = life_of(incarnation, announced(self), told);
        if life != Life::Over {
            return life;
        }
        self.announce(peer, sink);
        self.epoch_seen = None; // Its loss follows its last frame.
        match announced(self) == Some((incarnation, false)) {
            true => Life::Known,
            false => Life::Over, // Nobody knows any more who it was.
        }
    }

    /// A peer that was given up may still send: then it does not know.
    fn heard_of_the_lost(&mut self, peer: PeerId, incarnation: u32, kind: Kind) {
        if !self.is_alive(peer, incarnation) {
            return;
        }
        let is_it = |life: &(PeerId, u32, Instant)| (life.0, life.1) == (peer, incarnation);
        match kind {
            Kind::Control(Control::Noted) => self.given_up.retain(|life| !is_it(life)),
            Kind::Control(Control::GivenUp) => {
                self.given_up.retain(|life| !is_it(life));
                self.answer(peer, incarnation, Control::Noted);
            }
            _ if self.given_up.iter().any(is_it) => {}
            _ => self.given_up.push((peer, incarnation, Instant::now())),
        }
    }

    /// Announces the losses that are due (U4). Returns how many.
    pub(super) fn part(&mut self, now: Instant, sink: &mut dyn Sink) -> usize {
        let mut lost = 0;
        for peer in std::mem::take(&mut self.leaving) {
            let network = self.network;
            let known = self.known.get_mut(&peer).filter(|known| !known.is_lost);
            let Some(known) = known else { continue };
            let Some(leaving) = &mut known.leaving else {
                continue;
            };
            let is_unreachable = leaving.why == Why::Unreachable;
            let waited = now - leaving.since;
            let is_due = match is_unreachable {
                true => waited >= UNREACHABLE,
                // One that is not dead, but cut off from the agents, may send for ever.
                false => leaving.quiet.is_over(now, &network) || waited >= QUIET_MAX,
            };
            if !is_due {
                self.leaving.push(peer);
                continue;
            }
            known.is_lost = true;
            known.leaving = None;
            self.unused.extend(known.way.take());
            let incarnation = known.incarnation;
            if is_unreachable {
                let name = self.node.name_of(peer, Some(incarnation));
                let name = name.unwrap_or_else(|| peer.to_string().into());
                tracing::error!(peer = %name, "a unit of another node is given up: no way leads there");
                self.given_up.push((peer, incarnation, now));
            }
            sink.change(Change::Lost { peer, incarnation });
            lost += 1;
            // Another process may have its number meanwhile.
            self.epoch_seen = None;
        }
        lost
    }
}

impl Early {
    fn bytes(&self) -> usize {
        self.header.len() + self.body.len() + EARLY_ENTRY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loss is due when the network and the inbox have been read since, and some time is over.
    #[test]
    fn what_is_under_way_comes_before_a_loss() {
        let begin = Instant::now();
        let mut network = Looks::default();
        let mut quiet = Quiet::begin(begin, &network);
        let later = begin + QUIET;
        assert!(!quiet.is_over(later, &network), "nobody has looked");
        network.is_empty = true;
        assert!(!quiet.is_over(begin, &network), "it is early");
        assert!(quiet.is_over(later, &network));
        // What waits in the inbox may be from the peer; what comes later is not waited for.
        let mut quiet = Quiet::begin(begin, &network);
        (network.is_empty, network.waiting) = (false, 3);
        network.count += LOOKS;
        assert!(!quiet.is_over(later, &network));
        (network.taken, network.waiting) = (2, 9);
        assert!(!quiet.is_over(later, &network));
        network.taken = 3;
        assert!(quiet.is_over(later, &network));
    }
}
