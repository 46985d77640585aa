//! Transports of two nodes in one process, over TCP on the loopback interface. What the agents
//! would tell them is written by the tests.

use super::*;
use crate::Identity;
use crate::membership::{NodeId, NodeLife};
use crate::node::agent::FarTransport;
use crate::node::{Others, SimulatedNode, Slot, State};
use crate::transport::{Change, Incoming};
use samite_testkit::require;

const DOMAIN: u64 = 77;

/// What has arrived.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arrived {
    frames: Vec<u64>,
    joined: Vec<u32>,
    lost: Vec<u32>,
    /// Takes one frame in each poll.
    is_slow: bool,
    of_poll: usize,
    /// Panics once at this frame.
    panics_at: Option<u64>,
}

impl Sink for Arrived {
    fn frame(&mut self, frame: Incoming<'_>) {
        assert_eq!(self.joined.len(), self.lost.len() + 1, "T13, T4");
        assert_eq!(frame.body.len(), frame.arg % 5000);
        self.frames.push(frame.arg);
        self.of_poll += 1;
        if self.panics_at == Some(frame.arg) {
            self.panics_at = None;
            panic!("as in a test");
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Joined(info, _) => self.joined.push(info.incarnation),
            Change::Lost { incarnation, .. } => self.lost.push(incarnation),
            other => panic!("{other:?}"),
        }
    }

    fn satisfied(&self) -> bool {
        self.is_slow && self.of_poll > 0
    }
}

fn opened() -> Opened {
    let tcp = FarTransport {
        transports: Some("tcp".into()),
        devices: Some("lo".into()),
    };
    let far = Far {
        transport: tcp,
        domain: DOMAIN,
    };
    Opened::new(&far).expect("a worker")
}

/// A unit on a node of its own.
struct Unit {
    host: SimulatedNode,
    ucx: Ucx,
    peer: PeerId,
    incarnation: u32,
    address: Vec<u8>,
    arrived: Arrived,
}

impl Unit {
    fn new(number: u32) -> Unit {
        let life = NodeLife {
            node: NodeId::new(number).expect("a small number"),
            ..NodeLife::HEAD
        };
        let mut host = SimulatedNode::create(life, 16 << 20).expect("a node");
        let identity = Identity::by_hand("unit");
        let incarnation = host.admit(&identity).expect("a slot");
        let node = host.join(Slot(0), &identity).expect("a member");
        let opened = opened();
        Unit {
            peer: node.peer(),
            address: opened.address().to_vec(),
            ucx: Ucx::new(opened, DOMAIN, &node),
            host,
            incarnation,
            arrived: Arrived::default(),
        }
    }

    /// The agent reports a life.
    fn learns(&self, (peer, incarnation): (PeerId, u32), state: State, address: &[u8]) {
        let said = Others::encode(&Identity::by_hand("other"), 1, address);
        let others = &self.host.others;
        others.learn(peer, incarnation, state, said.into());
        self.host.raise_epoch();
    }

    fn life(&self) -> (PeerId, u32) {
        (self.peer, self.incarnation)
    }

    fn poll(&mut self) {
        self.arrived.of_poll = 0;
        self.ucx.poll(&mut self.arrived);
    }

    fn push(&mut self, to: PeerId, arg: u64) -> Push {
        let body = vec![0; (arg % 5000) as usize];
        let frame = Outgoing {
            class: Class::Request,
            kind: 1,
            arg,
            inline: &[],
            body: Body::Slice(&body),
        };
        self.ucx.push(to, &frame)
    }
}

/// Two units; `None` where UCX is missing. The first one knows the second one.
fn two(test: &str) -> Option<[Unit; 2]> {
    if !require(test, has_ucx(), "install libucx0: ci/packages.txt") {
        return None;
    }
    let mut units = [Unit::new(0), Unit::new(1)];
    let (life, address) = (units[1].life(), units[1].address.clone());
    units[0].learns(life, State::Alive, &address);
    let [first, second] = &mut units;
    first.ucx.announce(second.peer, &mut first.arrived);
    Some(units)
}

/// The second one knows the first one, too.
fn acquaint(first: &Unit, second: &Unit) {
    second.learns(first.life(), State::Alive, &first.address);
}

fn poll_both(units: &mut [Unit; 2]) {
    units.iter_mut().for_each(Unit::poll);
}

/// Sends from the first one to the second one, and returns when all is under way.
fn send(units: &mut [Unit; 2], args: std::ops::Range<u64>) {
    for arg in args {
        let to = units[1].peer;
        while units[0].push(to, arg) == Push::Full {
            units[0].poll();
            // Without progress nothing leaves; what arrives is not taken.
            units[1].ucx.worker.progress();
        }
    }
}

/// What arrives before the agent has reported its sender is delivered afterwards, in order.
#[test]
fn frames_of_a_life_that_is_not_reported_yet_wait() {
    let Some(mut units) = two("frames_of_a_life_that_is_not_reported_yet_wait") else {
        return;
    };
    send(&mut units, 0..200);
    while units[1].ucx.worker.taken() < 150 {
        poll_both(&mut units);
    }
    assert_eq!(units[1].arrived, Arrived::default());
    acquaint(&units[0], &units[1]);
    while units[1].arrived.frames.len() < 200 {
        poll_both(&mut units);
    }
    assert_eq!(units[1].arrived.frames, Vec::from_iter(0..200));
    assert_eq!(units[1].ucx.next_due(), None);
}

/// A process whose agent is late reads no more than it may keep, and loses nothing.
#[test]
fn what_waits_is_bounded() {
    const COUNT: u64 = 6000;
    let Some(mut units) = two("what_waits_is_bounded") else {
        return;
    };
    // With bodies of 4999 bytes: more than may wait.
    let mut left = (0..COUNT).map(|number| 4999 + 5000 * number).peekable();
    let mut push = |[first, second]: &mut [Unit; 2]| {
        if left
            .peek()
            .is_some_and(|arg| first.push(second.peer, *arg) == Push::Done)
        {
            left.next();
        }
    };
    while !units[1].ucx.peers.is_full() {
        push(&mut units);
        poll_both(&mut units);
    }
    let taken = units[1].ucx.worker.taken();
    assert!(taken < COUNT);
    for _ in 0..100 {
        poll_both(&mut units);
    }
    assert_eq!(units[1].ucx.worker.taken(), taken);
    acquaint(&units[0], &units[1]);
    while units[1].arrived.frames.len() < COUNT as usize {
        push(&mut units);
        poll_both(&mut units);
    }
    let frames = units[1].arrived.frames.iter().copied();
    assert!(frames.eq((0..COUNT).map(|number| 4999 + 5000 * number)));
}

/// A unit that ends after its last frame is lost after it, however slowly frames are taken.
#[test]
fn a_loss_comes_after_the_last_frame() {
    let Some(mut units) = two("a_loss_comes_after_the_last_frame") else {
        return;
    };
    acquaint(&units[0], &units[1]);
    send(&mut units, 0..100);
    while units[1].arrived.frames.is_empty() {
        poll_both(&mut units);
    }
    // It leaves: all that it has sent is in the inbox of the other one, or on its way there.
    let life = units[0].life();
    units[1].arrived.is_slow = true;
    let Unit { ucx, host, .. } = std::mem::replace(&mut units[0], Unit::new(2));
    let ending = std::thread::spawn(move || drop((ucx, host)));
    units[1].learns(life, State::Dead, &[]);
    while units[1].arrived.lost.is_empty() {
        units[1].poll();
    }
    ending.join().expect("an end");
    assert_eq!(units[1].arrived.frames, Vec::from_iter(0..100));
    for _ in 0..100 {
        units[1].poll();
    }
    assert_eq!(units[1].arrived.lost, [life.1]);
    assert_eq!(units[1].push(life.0, 0), Push::Gone);
}

/// Who only waits for a unit notices that no way leads there any more, and both give each other up.
#[test]
fn a_broken_way_is_a_loss_for_both() {
    let Some(mut units) = two("a_broken_way_is_a_loss_for_both") else {
        return;
    };
    acquaint(&units[0], &units[1]);
    send(&mut units, 0..3);
    while units[1].arrived.frames.len() < 3 {
        poll_both(&mut units);
    }
    // The worker of the first one ends, and another one has its place: the agents notice nothing.
    let [first, second] = &mut units;
    let to = first.peer;
    while second.push(to, 7) == Push::Full {
        second.poll();
    }
    while first.arrived.frames.is_empty() {
        first.poll();
        second.poll();
    }
    let other = opened();
    let address = other.address().to_vec();
    first.ucx.worker = other.worker;
    first.ucx.descriptor = Arc::new(other.descriptor);
    let way = first.ucx.peers.known.get_mut(&second.peer).expect("known");
    way.way = None;
    while second.arrived.lost.is_empty() {
        second.poll(); // It sends nothing.
    }
    assert_eq!(second.arrived.lost, [first.incarnation]);
    assert_eq!(second.push(to, 8), Push::Gone);
    assert!(first.arrived.lost.is_empty());
    // A way leads there again.
    let said = Others::encode(&Identity::by_hand("other"), 1, &address);
    let others = &second.host.others;
    others.learn(to, first.incarnation + 1, State::Alive, Box::default());
    others.learn(to, first.incarnation, State::Alive, said.into());
    while first.arrived.lost.is_empty() || second.ucx.next_due().is_some() {
        first.poll();
        second.poll();
    }
    assert_eq!(first.arrived.lost, [second.incarnation]);
    assert_eq!(first.push(second.peer, 9), Push::Gone);
    assert_eq!(first.ucx.next_due(), None);
}

/// A unit without an address is given up, and nobody waits for it for ever.
#[test]
fn a_unit_without_an_address_is_lost() {
    let Some(mut units) = two("a_unit_without_an_address_is_lost") else {
        return;
    };
    let peer = PeerId::new(1, 5);
    units[0].learns((peer, 3), State::Alive, &[]);
    let [first, _] = &mut units;
    first.ucx.announce(peer, &mut first.arrived);
    assert_eq!(first.push(peer, 1), Push::Full);
    while first.arrived.lost.is_empty() {
        first.poll();
    }
    assert_eq!(first.push(peer, 1), Push::Gone);
}

/// A handler that panics ends a poll, and no other frame is lost: neither one that waited for its
/// sender, nor one from the network.
#[test]
fn a_panic_loses_no_other_frame() {
    let Some(mut units) = two("a_panic_loses_no_other_frame") else {
        return;
    };
    send(&mut units, 0..20);
    while units[1].ucx.worker.taken() < 20 {
        poll_both(&mut units);
    }
    acquaint(&units[0], &units[1]);
    for (panics_at, sent) in [(7, 20..20), (25, 20..40)] {
        send(&mut units, sent.clone());
        units[1].arrived.panics_at = Some(panics_at);
        while units[1].arrived.frames.len() < sent.end as usize {
            units[0].poll();
            let poll = std::panic::AssertUnwindSafe(|| units[1].poll());
            let ended = std::panic::catch_unwind(poll);
            assert!(ended.is_ok() || units[1].arrived.panics_at.is_none());
        }
        assert_eq!(units[1].arrived.panics_at, None);
        assert_eq!(units[1].arrived.frames, Vec::from_iter(0..sent.end));
    }
    assert!(!units[1].ucx.peers.is_full());
}

/// A unit whose agent is cut off is lost, although it goes on sending.
#[test]
fn who_sends_for_ever_is_lost_all_the_same() {
    let Some(mut units) = two("who_sends_for_ever_is_lost_all_the_same") else {
        return;
    };
    acquaint(&units[0], &units[1]);
    let life = units[0].life();
    let mut next = 0;
    while units[1].arrived.lost.is_empty() {
        send(&mut units, next..next + 1);
        next += 1;
        poll_both(&mut units);
        if next == 10 {
            units[1].learns(life, State::Dead, &[]);
        }
    }
    let delivered = units[1].arrived.frames.len();
    send(&mut units, next..next + 10);
    (0..100).for_each(|_| poll_both(&mut units));
    assert_eq!(
        units[1].arrived.frames.len(),
        delivered,
        "nothing after the loss (T4)"
    );
}

/// A unit that leaves waits until the other one has taken what it sent.
#[test]
fn who_leaves_waits_for_its_last_frames() {
    let Some(mut units) = two("who_leaves_waits_for_its_last_frames") else {
        return;
    };
    acquaint(&units[0], &units[1]);
    send(&mut units, 0..200);
    let life = units[0].life();
    let [first, second] = &mut units;
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| first.ucx.leave());
        while !leaving.is_finished() {
            second.poll();
        }
    });
    assert_eq!(second.arrived.frames, Vec::from_iter(0..200));
    second.learns(life, State::Dead, &[]);
    while second.arrived.lost.is_empty() {
        second.poll();
    }
    assert_eq!(second.arrived.frames.len(), 200);
}
