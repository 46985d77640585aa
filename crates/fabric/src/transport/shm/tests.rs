//! Two ends of one node in one process: how the reading end handles what the other one writes.

use super::inbound::TURN;
use super::*;
use crate::membership::NodeLife;
use crate::node::PeerTableWriter;
use crate::node::PrivateExtents;
use crate::node::agent::{Book, Node};
use crate::transport::{AnyTransport, Class, Incoming, Sink};
use crate::{Config, Fabric, Identity, node};
use samite_mem::ring::{Body, RING_BYTES};
use samite_mem::{Arena, ExtentSource, Span};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Large enough for a body for which no machine should allocate memory; most of it is never
/// touched.
const BUDGET: u64 = 2 << 30;

/// What polls brought.
#[derive(Debug, Default)]
struct Heard {
    bodies: Vec<u64>,
    corrupt: Vec<&'static str>,
    /// Whether it waits for only one frame.
    one: bool,
}

impl Sink for Heard {
    fn frame(&mut self, frame: Incoming<'_>) {
        self.bodies.push(frame.body.len());
    }
    fn satisfied(&self) -> bool {
        self.one && !self.bodies.is_empty()
    }
    fn change(&mut self, change: crate::transport::Change) {
        if let crate::transport::Change::Corrupt { what, .. } = change {
            self.corrupt.push(what.what);
        }
    }
}

/// Returns another mapping of the arena.
fn mapped(layout: &Layout) -> Arena {
    let fd = layout.arena().fd().try_clone_to_owned().unwrap();
    Arena::attach(fd).unwrap()
}

fn frame(body: &[u8]) -> Outgoing<'_> {
    Outgoing {
        class: Class::Request,
        kind: 1,
        arg: 0,
        inline: &[],
        body: Body::Slice(body),
    }
}

/// A writer, a reader, and another possible writer.
struct Ends {
    writer: Shm,
    reader: Shm,
    newcomer: Shm,
    node: Node,
}

impl Ends {
    fn new() -> Ends {
        let mut node = Node::create(NodeLife::HEAD, BUDGET).unwrap();
        let all = node.layout().extents();
        let bytes = all.bytes / 2;
        let half = |offset| Some(Book::new(Span { offset, bytes }));
        let mut books = [half(all.offset), None, half(all.offset + bytes)].into_iter();
        let mut end = || {
            let pid = std::process::id() as i32;
            let identity = Identity::by_hand("test");
            let life = node.admit(pid, None, &node::own_cpus(), &identity).unwrap();
            // One end allocates no blocks. Each has a mapping of its own, as processes have.
            let book = books.next().flatten();
            let book = book.unwrap_or_else(|| {
                Book::new(Span {
                    offset: 0,
                    bytes: 0,
                })
            });
            let layout = Layout::new(mapped(node.layout()), node.layout().peers.clone()).unwrap();
            let extents = PrivateExtents(book, layout.arena().clone());
            let membership = NodeMember::new(life, &identity, layout, Box::new(extents), false);
            Shm::new(&membership, None)
        };
        let (writer, reader, newcomer) = (end(), end(), end());
        Ends {
            writer,
            reader,
            newcomer,
            node,
        }
    }

    fn write(&mut self, body: &[u8]) {
        assert_eq!(
            self.writer.push(self.reader.me.of(0), &frame(body)),
            Push::Done
        );
    }

    fn read(&mut self) -> Heard {
        let mut heard = Heard::default();
        for _ in 0..100 {
            self.reader.poll(&mut heard);
        }
        heard
    }

    /// Returns the ring, for the writer to scribble over.
    fn ring(&self) -> SharedBytes {
        let layout = self.node.layout();
        let inbox = layout.inbox(self.reader.me, self.writer.me);
        let offset = inbox.load(Ordering::Acquire);
        layout.arena().bytes(offset, RING_BYTES).unwrap()
    }
}

/// Where the ring holds the place of its bulk area, and its first frame that of its body.
const BULK_OFFSET: u64 = 128;
const BULK_BYTES: u64 = 136;
const BODY_BYTES: u64 = 256 + 24;

#[test]
fn a_bulk_area_or_body_of_any_size_is_refused() {
    let honest = samite_mem::ring::bulk_bytes(BODY_MAX);
    for (area, body) in [
        (honest, BODY_MAX + 1),
        (honest, honest),
        (honest + 1, 100),
        (1 << 30, 1 << 29),
        (u64::MAX, u64::MAX),
    ] {
        let mut ends = Ends::new();
        ends.write(&[1; 100]);
        let ring = ends.ring();
        if area != honest {
            let far = node::EXTENTS + (256 << 20);
            ring.u64(BULK_OFFSET).store(far, Ordering::Relaxed);
        }
        ring.u64(BULK_BYTES).store(area, Ordering::Relaxed);
        ring.u64(BODY_BYTES).store(body, Ordering::Relaxed);
        let heard = ends.read();
        assert_eq!(
            heard.bodies, [0; 0],
            "{body} bytes of {area} were delivered"
        );
        assert_eq!(heard.corrupt.len(), 1, "{body} bytes of {area}: {heard:?}");
    }
    let mut ends = Ends::new();
    ends.write(&vec![1; BODY_MAX as usize]);
    assert_eq!(ends.read().bodies, [BODY_MAX]);
}

/// A few rings are polled forever, however seldom one of them has a frame.
#[test]
fn a_quiet_ring_is_counted_without_end() {
    let mut ends = Ends::new();
    ends.write(&[1; 8]);
    assert_eq!(ends.read().bodies, [8]);
    let writer = ends.writer.me;
    ends.reader.let_idle(writer, u32::MAX);
    assert_eq!(ends.read().bodies, [0; 0]);
    ends.write(&[1; 9]);
    assert_eq!(ends.read().bodies, [9]);
}

/// Anybody can write a news bit: one that is set before there is a ring, or before there is a peer,
/// hides nothing, and one that is cleared hides a frame only until the next look around.
#[test]
fn a_news_bit_that_others_write_hides_no_ring() {
    let mut ends = Ends::new();
    let bell = ends.node.layout().doorbell(ends.reader.me);
    let writer = ends.writer.me.index();
    for from in writer..writer + 3 {
        bell.keep(from);
    }
    assert_eq!(ends.read().bodies, [0; 0]);
    ends.write(&[1; 8]);
    assert_eq!(ends.read().bodies, [8], "set before the ring was there");
    // No longer polled, as if it had been quiet among others.
    ends.reader.stop_polling(ends.writer.me);
    ends.write(&[1; 9]);
    bell.forget(writer);
    let mut heard = Heard::default();
    while heard.bodies.is_empty() {
        ends.reader.poll(&mut heard);
    }
    assert_eq!(heard.bodies, [9], "cleared after the frame was there");
}

/// One peer has a frame in its ring at every poll, and each receive takes one message: another peer
/// that starts to send is still heard soon.
#[test]
fn a_full_ring_does_not_hide_a_newcomer() {
    let mut ends = Ends::new();
    ends.write(&[1; 8]);
    assert_eq!(ends.read().bodies, [8]);
    let to = ends.reader.me;
    assert_eq!(ends.newcomer.push(to.of(0), &frame(&[1; 9])), Push::Done);
    for _ in 0..100 {
        while ends.writer.push(to.of(0), &frame(&[1; 8])) == Push::Done {}
        let mut heard = Heard {
            one: true,
            ..Heard::default()
        };
        ends.reader.poll(&mut heard);
        if heard.bodies.contains(&9) {
            return;
        }
    }
    panic!("not heard in 100 polls that each brought a message");
}

/// A table of peers in which the first incarnation of a number is dead, and the second is alive
/// when the loss of the first is handled, as if the reader had been stopped in between.
struct Replaced<'a, F: FnMut()> {
    heard: Heard,
    joined: Vec<u32>,
    lost: Vec<u32>,
    at_loss: &'a mut F,
}

impl<F: FnMut()> Sink for Replaced<'_, F> {
    fn frame(&mut self, frame: Incoming<'_>) {
        self.heard.frame(frame);
    }
    fn change(&mut self, change: crate::transport::Change) {
        match change {
            crate::transport::Change::Joined(info, _) => self.joined.push(info.incarnation),
            crate::transport::Change::Lost { incarnation, .. } => {
                self.lost.push(incarnation);
                (self.at_loss)();
            }
            other => self.heard.change(other),
        }
    }
}

/// A node whose table of peers the test writes itself.
struct Table {
    table: PeerTableWriter,
    layout: Layout,
}

impl Table {
    /// Creates a table with so many peers, all alive in their first incarnation.
    fn new(peers: u32) -> Table {
        let table = PeerTableWriter::create(0, samite_mem::enable_asymmetric_fences()).unwrap();
        let arena = Arena::create(node::EXTENTS + (64 << 20)).unwrap();
        let layout = Layout::new(arena, table.reader()).unwrap();
        let pid = std::process::id() as i32;
        for peer in (0..peers).map(Slot) {
            let identity = Identity::by_hand("test");
            table
                .admit(peer, pid, &node::own_cpus(), &identity)
                .unwrap();
            table.publish(peer, State::Alive, 1);
        }
        table.publish_used(peers);
        table.publish_epoch(1);
        Table { table, layout }
    }

    /// Creates the membership of an incarnation of a peer with these extents.
    fn member(&self, life: (Slot, u32), extents: Span) -> NodeMember {
        let layout = Layout::new(mapped(&self.layout), self.table.reader()).unwrap();
        let extents = PrivateExtents(Book::new(extents), layout.arena().clone());
        let identity = Identity::by_hand("test");
        NodeMember::new(life, &identity, layout, Box::new(extents), false)
    }

    /// Creates its transport.
    fn end(&self, life: (Slot, u32), extents: Span) -> Shm {
        Shm::new(&self.member(life, extents), None)
    }

    /// Creates a process that is a peer in its first incarnation, and has no memory to share.
    fn fabric(&self, peer: Slot) -> Fabric {
        let member = self.member((peer, 1), NO_EXTENTS);
        let transport = AnyTransport::Shm(Box::new(Shm::new(&member, None)));
        let (identity, config) = (Identity::by_hand("test"), Config::default());
        Fabric::assemble(member, transport, identity, None, config)
    }

    fn publish(&self, peer: Slot, state: State, incarnation: u32, epoch: u64) {
        self.table.publish(peer, state, incarnation);
        self.table.publish_epoch(epoch);
    }
}

const NO_EXTENTS: Span = Span {
    offset: 0,
    bytes: 0,
};

/// The id of a killed process may have been reused: the kernel is not asked to copy from it.
#[test]
fn the_kernel_copies_nothing_of_a_process_that_is_gone() {
    let table = Table::new(2);
    let (user, owner) = (table.fabric(Slot(0)), table.fabric(Slot(1)));
    let segment = owner.register(vec![7u8; 4096]).unwrap();
    let remote = user.attach(segment.key()).unwrap();
    let mut bytes = [0; 8];
    remote.get(0, &mut bytes).unwrap();
    assert_eq!(
        bytes, [7; 8],
        "the owner makes no progress: the kernel has copied"
    );
    table.publish(Slot(1), State::Dead, 1, 2);
    let is_lost = |ended: crate::Result<()>| matches!(ended, Err(crate::Error::PeerLost { .. }));
    assert!(is_lost(remote.put(0, &[8; 8])));
    assert!(is_lost(remote.put_nb(0, &[8; 8]).map(drop)));
    assert!(is_lost(remote.get(0, &mut bytes)));
    segment.bytes().read(0, &mut bytes);
    assert_eq!(bytes, [7; 8]);
}

/// What was seen of an incarnation that has ended does not apply to the next one, which keeps its
/// ring.
#[test]
fn a_number_that_gets_its_next_life_while_it_is_looked_at_keeps_its_ring() {
    let (me, peer) = (Slot(0), Slot(1));
    let table = Table::new(2);
    let mut reader = table.end((me, 1), NO_EXTENTS);
    let mut second = table.end((peer, 2), table.layout.extents());
    let mut at_loss = || {
        table.publish(peer, State::Alive, 2, 3);
        assert_eq!(second.push(me.of(0), &frame(&[1; 9])), Push::Done);
    };
    let mut sink = Replaced {
        heard: Heard::default(),
        joined: Vec::new(),
        lost: Vec::new(),
        at_loss: &mut at_loss,
    };
    reader.poll(&mut sink);
    assert_eq!(sink.joined, [1, 1]);
    table.publish(peer, State::Dead, 1, 2);
    for _ in 0..100 {
        reader.poll(&mut sink);
    }
    assert_eq!((sink.joined, sink.lost), (vec![1, 1, 2], vec![1]));
    assert_eq!(sink.heard.bodies, [9]);
}

/// A program with a handler that panics once, in this frame, and which catches the panic.
#[derive(Debug)]
struct Panicky {
    in_frame: usize,
    frames: usize,
    bodies: Vec<u64>,
    joined: usize,
    lost: Vec<u32>,
    agent_lost: usize,
}

impl Panicky {
    fn new(in_frame: usize) -> Panicky {
        Panicky {
            in_frame,
            frames: 0,
            bodies: Vec::new(),
            joined: 0,
            lost: Vec::new(),
            agent_lost: 0,
        }
    }

    /// Polls; returns whether a handler panicked.
    fn poll(&mut self, end: &mut Shm) -> bool {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        catch_unwind(AssertUnwindSafe(|| end.poll(self))).is_err()
    }

    /// Polls until `is_over`, which must hold within a minute.
    fn poll_until(&mut self, end: &mut Shm, is_over: impl Fn(&Panicky) -> bool) {
        let start = Instant::now();
        while !is_over(self) {
            self.poll(end);
            assert!(start.elapsed() < Duration::from_secs(60), "{self:?}");
        }
    }
}

impl Sink for Panicky {
    fn frame(&mut self, frame: Incoming<'_>) {
        self.frames += 1;
        if self.frames == self.in_frame {
            std::panic::resume_unwind(Box::new("a handler"));
        }
        self.bodies.push(frame.body.len());
    }
    fn change(&mut self, change: crate::transport::Change) {
        match change {
            crate::transport::Change::Joined(..) => self.joined += 1,
            crate::transport::Change::Lost { incarnation, .. } => self.lost.push(incarnation),
            crate::transport::Change::AgentLost => self.agent_lost += 1,
            other => panic!("{other:?}"),
        }
    }
}

/// A peer dies, and a handler panics in one of its last frames: the others are delivered, its loss
/// is reported once, and it does not join again.
#[test]
fn a_panic_in_last_words_loses_none_of_the_others() {
    const FRAMES: u64 = 40;
    let (me, peer) = (Slot(0), Slot(1));
    let table = Table::new(2);
    let mut reader = table.end((me, 1), NO_EXTENTS);
    // The panic comes in the first frame beyond one turn.
    let mut program = Panicky::new(TURN as usize + 1);
    assert!(!program.poll(&mut reader));
    let mut writer = table.end((peer, 1), table.layout.extents());
    for bytes in 1..=FRAMES {
        let body = vec![1; bytes as usize];
        assert_eq!(writer.push(me.of(0), &frame(&body)), Push::Done);
    }
    table.publish(peer, State::Dead, 1, 2);
    assert!(program.poll(&mut reader), "no panic: {program:?}");
    program.poll_until(&mut reader, |program| !program.lost.is_empty());
    (0..100).for_each(|_| assert!(!program.poll(&mut reader)));
    assert_eq!((program.joined, program.lost.as_slice()), (2, &[1][..]));
    let panicked = u64::from(TURN) + 1;
    let all: Vec<u64> = (1..=FRAMES).filter(|bytes| *bytes != panicked).collect();
    assert_eq!(program.bodies, all);
}

/// The agent dies, and with it a peer in its process; a handler panics in the peer's last frames:
/// both deaths are reported.
#[test]
fn a_panic_in_last_words_does_not_hide_the_death_of_the_agent() {
    let mut ends = Ends::new();
    ends.write(&[1; 8]);
    assert_eq!(ends.read().bodies, [8]);
    // Its ring is not polled, and no news bit is set for it.
    ends.reader.stop_polling(ends.writer.me);
    for bytes in 9..12 {
        ends.write(&vec![1; bytes]);
    }
    let bell = ends.node.layout().doorbell(ends.reader.me);
    bell.forget(ends.writer.me.index());
    let mut dead = std::process::Command::new("true").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&dead);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    dead.wait().unwrap();
    // All of them are in the process that keeps the node.
    ends.reader.agent = Some(AgentWatch(pidfd));
    let mut program = Panicky::new(1);
    program.poll_until(&mut ends.reader, |program| program.frames == 1);
    program.poll_until(&mut ends.reader, |program| program.agent_lost > 0);
    (0..100).for_each(|_| assert!(!program.poll(&mut ends.reader)));
    assert_eq!(program.bodies, [10, 11]);
    assert_eq!((program.lost.len(), program.agent_lost), (2, 1));
}

/// Extents that count how many were granted and returned.
struct Counted(PrivateExtents, Arc<[AtomicU32; 2]>);

impl ExtentSource for Counted {
    fn grant(&mut self, bytes: u64, deadline: Duration) -> Result<Span, samite_mem::Error> {
        self.1[0].fetch_add(1, Ordering::Relaxed);
        self.0.grant(bytes, deadline)
    }
    fn give_back(&mut self, extents: Vec<Span>) {
        self.1[1].fetch_add(extents.len() as u32, Ordering::Relaxed);
        self.0.give_back(extents);
    }
}

/// The memory of a leaving process is freed when all others have seen its departure, as the agent
/// reports, and not when the process drops its rings: the agent may never hear that it leaves, and
/// others read the rings until then.
#[test]
fn who_leaves_gives_no_ring_back() {
    let table = Table::new(1);
    let counts: Arc<[AtomicU32; 2]> = Arc::default();
    let extents = PrivateExtents::of(&table.layout);
    let extents = Box::new(Counted(extents, counts.clone()));
    let me = Slot(0);
    let identity = Identity::by_hand("test");
    let node = NodeMember::new((me, 1), &identity, table.layout.clone(), extents, false);
    let transport = AnyTransport::Shm(Box::new(Shm::new(&node, None)));
    let fabric = Fabric::assemble(node, transport, identity, None, Config::default());
    let echo = |bytes: &[u8]| {
        fabric.send(me.of(0), 1, bytes).unwrap();
        let (_, found) = fabric.recv_vec(crate::Match::any(1)).unwrap();
        assert_eq!(found, bytes);
    };
    // The ring is in one extent, and its bulk area in another.
    echo(&[1; 8]);
    let between: Vec<_> = (0..30)
        .map(|_| fabric.allocate(100 << 10).unwrap())
        .collect();
    echo(&[1; 2000]);
    drop(between);
    fabric.progress();
    let count = || [0, 1].map(|which| counts[which].load(Ordering::Relaxed));
    let [granted, given_back] = count();
    assert_eq!(granted - given_back, 2, "{granted} were granted");
    drop(fabric);
    assert_eq!(count(), [granted, given_back]);
}
