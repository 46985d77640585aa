//! Two ends of one node in one process: what the reading end makes of what the other one writes.

use super::*;
use crate::agent::{Book, Node};
use crate::layout::PeerTableWriter;
use crate::transport::{Class, Incoming, Sink};
use crate::{Identity, layout};
use samite_mem::ring::{Body, RING_BYTES};
use samite_mem::sync::Ordering;
use samite_mem::{Arena, Span};

/// Large enough for a body that no machine should take memory for; most of it is never touched.
const BUDGET: u64 = 2 << 30;

/// What a poll brought.
#[derive(Debug, Default)]
struct Heard {
    bodies: Vec<u64>,
    corrupt: Vec<&'static str>,
    /// Whether it waits for one frame only.
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

/// The arena once more.
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

/// One that writes, one that reads, and another one that may write.
struct Ends {
    writer: Shm,
    reader: Shm,
    newcomer: Shm,
    node: Node,
}

impl Ends {
    fn new() -> Ends {
        let mut node = Node::create(BUDGET).unwrap();
        let all = node.layout().extents();
        let bytes = all.bytes / 2;
        let half = |offset| Some(Book::new(Span { offset, bytes }));
        let mut books = [half(all.offset), None, half(all.offset + bytes)].into_iter();
        let mut end = || {
            let pid = std::process::id() as i32;
            let identity = Identity::by_hand("test");
            let life = node
                .admit(pid, None, &layout::own_cpus(), &identity)
                .unwrap();
            // One end makes no blocks. Each has a mapping of its own, as processes have.
            let book = books.next().flatten();
            let book = book.unwrap_or_else(|| {
                Book::new(Span {
                    offset: 0,
                    bytes: 0,
                })
            });
            let layout = Layout::new(mapped(node.layout()), node.layout().peers.clone()).unwrap();
            let extents = PrivateExtents(book, layout.arena().clone());
            let membership = Membership::new(life, layout, Box::new(extents), false);
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
        assert_eq!(self.writer.push(self.reader.me, &frame(body)), Push::Done);
    }

    fn read(&mut self) -> Heard {
        let mut heard = Heard::default();
        for _ in 0..100 {
            self.reader.poll(&mut heard);
        }
        heard
    }

    /// The ring, as the writer can scribble over it.
    fn ring(&self) -> SharedBytes {
        let layout = self.node.layout();
        let inbox = layout.inbox(self.reader.me, self.writer.me);
        let offset = inbox.load(Ordering::Acquire);
        layout.arena().bytes(offset, RING_BYTES).unwrap()
    }
}

/// Where the ring says where its bulk area is, and where its first frame says where its body is.
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
            let far = layout::EXTENTS + (256 << 20);
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

/// A few rings are polled for ever, however seldom one of them speaks.
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

/// A news bit is a word that anybody can write: one that is set before there is a ring, or before there is a peer,
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
    // No longer polled, as if it had been quiet beside others.
    ends.reader.stop_polling(ends.writer.me);
    ends.write(&[1; 9]);
    bell.forget(writer);
    let mut heard = Heard::default();
    while heard.bodies.is_empty() {
        ends.reader.poll(&mut heard);
    }
    assert_eq!(heard.bodies, [9], "cleared after the frame was there");
}

/// One peer has something in its ring whenever it is looked at, and each receive takes one message: another one that
/// begins to speak is heard soon.
#[test]
fn a_full_ring_does_not_hide_a_newcomer() {
    let mut ends = Ends::new();
    ends.write(&[1; 8]);
    assert_eq!(ends.read().bodies, [8]);
    let to = ends.reader.me;
    assert_eq!(ends.newcomer.push(to, &frame(&[1; 9])), Push::Done);
    for _ in 0..100 {
        while ends.writer.push(to, &frame(&[1; 8])) == Push::Done {}
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

/// A table of peers that says that the first life of a number is dead, and says of the second one that it lives when the
/// loss of the first one is heard: as if the reader had been stopped there for as long as all that takes.
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
            crate::transport::Change::Joined(info) => self.joined.push(info.incarnation),
            crate::transport::Change::Lost { incarnation, .. } => {
                self.lost.push(incarnation);
                (self.at_loss)();
            }
            other => self.heard.change(other),
        }
    }
}

/// What was seen of a life that is over is not said of the next one: that keeps its ring.
#[test]
fn a_number_that_gets_its_next_life_while_it_is_looked_at_keeps_its_ring() {
    let (me, peer) = (PeerId(0), PeerId(1));
    let table = PeerTableWriter::create(samite_mem::enable_asymmetric_fences()).unwrap();
    let arena = Arena::create(layout::EXTENTS + (64 << 20)).unwrap();
    let layout = Layout::new(arena, table.reader()).unwrap();
    let pid = std::process::id() as i32;
    for peer in [me, peer] {
        let identity = Identity::by_hand("test");
        table
            .admit(peer, pid, &layout::own_cpus(), &identity)
            .unwrap();
        table.publish(peer, State::Alive, 1);
    }
    table.publish_used(2);
    table.publish_epoch(1);
    let end = |life, extents| {
        let layout = Layout::new(mapped(&layout), table.reader()).unwrap();
        let extents = PrivateExtents(Book::new(extents), layout.arena().clone());
        let membership = Membership::new(life, layout, Box::new(extents), false);
        Shm::new(&membership, None)
    };
    let none = Span {
        offset: 0,
        bytes: 0,
    };
    let mut reader = end((me, 1), none);
    let mut second = end((peer, 2), layout.extents());
    let mut at_loss = || {
        table.publish(peer, State::Alive, 2);
        table.publish_epoch(3);
        assert_eq!(second.push(me, &frame(&[1; 9])), Push::Done);
    };
    let mut sink = Replaced {
        heard: Heard::default(),
        joined: Vec::new(),
        lost: Vec::new(),
        at_loss: &mut at_loss,
    };
    reader.poll(&mut sink);
    assert_eq!(sink.joined, [1, 1]);
    table.publish(peer, State::Dead, 1);
    table.publish_epoch(2);
    for _ in 0..100 {
        reader.poll(&mut sink);
    }
    assert_eq!((sink.joined, sink.lost), (vec![1, 1, 2], vec![1]));
    assert_eq!(sink.heard.bodies, [9]);
}
