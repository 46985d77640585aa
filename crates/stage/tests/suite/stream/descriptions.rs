//! What steps say of themselves lies in the coordinator's own memory, which has a limit for each
//! process: who waits there, and for whom.

use super::*;

const PART: usize = 10 << 20;

impl Stage {
    /// A stream that a process writes and another one reads, as a group that may be far behind.
    fn stream(&mut self, writes: u32, name: &str, reads: u32) -> (WriterId, ReaderId) {
        let writer = self.writer_of(writes, name);
        (writer, self.follow(reads, name, Policy::Block))
    }

    /// A reader of a stream that may be far behind.
    fn follow(&mut self, reads: u32, name: &str, policy: Policy) -> ReaderId {
        let limits = Limits {
            steps: 1000,
            bytes: 1 << 20,
        };
        self.follow_with(reads, name, policy, limits)
    }

    fn follow_with(&mut self, reads: u32, name: &str, policy: Policy, limits: Limits) -> ReaderId {
        let limits = Some(limits);
        let reader = Box::new(Reader {
            limits,
            ..group("viewer", policy)
        });
        let ticket = self.ask(Peer(reads.into()), |ticket| Request::OpenReader {
            ticket,
            stream: name.into(),
            reader,
            timeout: 0,
            gives_up: false,
        });
        match self.answer(ticket) {
            Answer::Reading { reader, .. } => reader,
            other => panic!("{other:?}"),
        }
    }

    /// A step that is nothing but a text of so many bytes.
    fn write_text(&mut self, peer: u32, writer: WriterId, step: Step, bytes: usize) {
        let ticket = self.begin_as(peer, writer, step, Vec::new());
        assert_eq!(self.buffers(ticket), []);
        self.commit_text(peer, writer, step, bytes);
    }

    fn commit_text(&mut self, peer: u32, writer: WriterId, step: Step, bytes: usize) {
        let part = Part {
            step,
            layout: LayoutRef::New(Arc::default()),
            slots: Vec::new(),
            places: BlockOffsets::Packed,
            attributes: vec![("text".into(), Attribute::Text("x".repeat(bytes)))],
            checksum: 7,
        };
        let keep = false;
        let ticket = self.ask(Peer(peer.into()), |ticket| Request::Commit {
            ticket,
            writer,
            part,
            keep,
        });
        assert_eq!(self.answer(ticket), Answer::Committed);
    }
}

/// What steps say beside their bytes has a limit, too: a writer waits there for readers that live,
/// and drops what groups may lose.
#[test]
fn steps_with_much_to_say_wait_for_readers_that_live() {
    for policy in [Policy::Block, Policy::DropOldest] {
        let mut stage = Stage::new(1 << 20);
        let writer = stage.writer(0, 1, &config());
        let wide = Reader {
            limits: Some(Limits {
                steps: 1000,
                bytes: 1 << 20,
            }),
            ..group("viewer", policy)
        };
        let reader = stage.reader(10, wide);
        let commit = |stage: &mut Stage, step| {
            let part = Part {
                step,
                layout: LayoutRef::New(Arc::default()),
                slots: Vec::new(),
                places: BlockOffsets::Packed,
                attributes: vec![("text".into(), Attribute::Text("x".repeat(10 << 20)))],
                checksum: 7,
            };
            let keep = false;
            let ticket = stage.ask(Peer(0), |ticket| Request::Commit {
                ticket,
                writer,
                part,
                keep,
            });
            assert_eq!(stage.answer(ticket), Answer::Committed);
        };
        let mut late = None;
        for step in 0..10 {
            let ticket = stage.begin_at(writer, step, Vec::new());
            if stage.waits(ticket) {
                late = Some((step, ticket));
                break;
            }
            assert_eq!(stage.buffers(ticket), []);
            commit(&mut stage, step);
        }
        if policy == Policy::DropOldest {
            assert_eq!(late, None, "the oldest are dropped");
            assert_eq!(stage.drain(10, reader).last(), Some(&9));
            continue;
        }
        let (step, ticket) = late.expect("64 MiB are the most");
        assert_eq!(step, 6);
        stage.pass(1000);
        let fault = stage.still_waits(ticket);
        assert!(matches!(fault, Fault::TooMuchOpen { .. }), "{fault}");
        // But one that holds them waits for the step that has no room beside them.
        let holds: Vec<Ticket> = (0..step).map(|_| stage.next(10, reader)).collect();
        stage.next(10, reader);
        let ticket = stage.begin_at(writer, step, Vec::new());
        stage.pass(1000);
        let fault = stage.fault(ticket);
        assert!(matches!(fault, Fault::Circle { .. }), "{fault}");
        let ticket = stage.begin_at(writer, step, Vec::new());
        assert!(stage.waits(ticket), "they are held");
        let hold = holds[0];
        assert_eq!(stage.record(hold).step, 0);
        stage.release(10, reader, hold);
        assert_eq!(stage.buffers(ticket), []);
        commit(&mut stage, step);
        // Nobody waits for readers that are gone.
        let ticket = stage.begin_at(writer, step + 1, Vec::new());
        assert!(stage.waits(ticket));
        stage.feed(Event::Lost(Peer(10)));
        stage.pass(1000);
        assert!(!matches!(stage.answer(ticket), Answer::Waiting(_)));
    }
}

/// A writer of one stream is let in when readers of another one let go of what its process has
/// there; and what it has begun it may finish.
#[test]
fn steps_of_another_stream_are_waited_for() {
    let mut stage = Stage::new(1 << 20);
    let (field, fast) = stage.stream(0, "field", 10);
    let (trace, slow) = stage.stream(0, "trace", 11);
    let (more, _) = stage.stream(0, "more", 12);
    for writer in [field, trace, more] {
        stage.write_text(0, writer, 0, if writer == field { PART } else { 10 });
    }
    assert_eq!(stage.drain(10, fast), [0]);
    let begun = stage.begin_at(more, 1, Vec::new());
    assert_eq!(stage.buffers(begun), []);
    stage.write_text(0, trace, 1, 39 * PART / 100);
    for step in 2..8 {
        stage.write_text(0, trace, step, PART);
    }
    // Of the field nothing is unread.
    let ticket = stage.begin_at(field, 1, Vec::new());
    assert!(stage.waits(ticket));
    stage.pass(1000);
    let fault = stage.still_waits(ticket);
    assert!(matches!(fault, Fault::TooMuchOpen { .. }), "{fault}");
    // Nor does it matter that its writer has closed the stream of which something is; and a new one
    // is opened when there is room.
    stage.close(trace);
    let ticket = stage.begin_at(field, 1, Vec::new());
    stage.pass(1000);
    let fault = stage.still_waits(ticket);
    assert!(matches!(fault, Fault::TooMuchOpen { .. }), "{fault}");
    let ticket = stage.begin_at(field, 1, Vec::new());
    let opened = stage.ask(Peer(0), |ticket| Request::OpenReader {
        ticket,
        stream: "more".into(),
        reader: Box::new(group("late", Policy::Block)),
        timeout: 1000,
        gives_up: false,
    });
    assert!(stage.waits(opened));
    stage.drain(11, slow);
    assert!(matches!(stage.answer(opened), Answer::Reading { .. }));
    assert_eq!(stage.buffers(ticket), [], "there is room");
    stage.commit_text(0, field, 1, 63 << 20);
    let wants = vec![Want {
        block_store: BLOCK_STORE,
        bytes: 128,
    }];
    // What was begun gets what it needs, over that.
    let ticket = stage.ask(Peer(0), |ticket| Request::Reserve {
        ticket,
        writer: more,
        wants,
        timeout: 1000,
    });
    assert_eq!(stage.buffers(ticket).len(), 1);
}

/// A simulation waits for a filter, which waits for a viewer, which computes: that is a chain and
/// no circle.
#[test]
fn a_chain_of_living_processes_is_waited_for() {
    let mut stage = Stage::new(1 << 20);
    let (raw, filter) = stage.stream(0, "raw", 1);
    let (smooth, viewer) = stage.stream(1, "smooth", 2);
    let wait = |stage: &mut Stage, peer, writer, step| {
        let ticket = stage.begin_as(peer, writer, step, Vec::new());
        assert!(stage.waits(ticket), "it has no room");
        ticket
    };
    for step in 0..6 {
        stage.write_text(0, raw, step, PART);
        stage.write_text(1, smooth, step, PART);
    }
    let held = stage.next(1, filter);
    assert_eq!(stage.record(held).step, 0);
    for _ in 0..10 {
        let waits = [wait(&mut stage, 0, raw, 6), wait(&mut stage, 1, smooth, 6)];
        stage.pass(1000);
        for ticket in waits {
            let fault = stage.still_waits(ticket);
            assert!(matches!(fault, Fault::TooMuchOpen { .. }), "{fault}");
        }
    }
    let waits = [wait(&mut stage, 0, raw, 6), wait(&mut stage, 1, smooth, 6)];
    stage.drain(2, viewer);
    assert_eq!(stage.buffers(waits[1]), []);
    stage.release(1, filter, held);
    assert_eq!(stage.buffers(waits[0]), []);
}

/// Two processes that each have too much of what the other one has still to read.
#[test]
fn a_circle_over_what_steps_say() {
    let mut stage = Stage::new(1 << 20);
    let (there, _) = stage.stream(0, "there", 1);
    let (back, _) = stage.stream(1, "back", 0);
    for step in 0..6 {
        stage.write_text(0, there, step, PART);
        stage.write_text(1, back, step, PART);
    }
    let waits = [
        stage.begin_as(0, there, 6, Vec::new()),
        stage.begin_as(1, back, 6, Vec::new()),
    ];
    stage.pass(1000);
    let [here, other] = waits.map(|ticket| stage.fault(ticket));
    let sentence = "this wait would never end, because there.0 waits for capacity in there until viewer.0 reads, and back.0 waits for capacity in back until viewer.0 reads: raise a limit, or change the order in which one of them reads or writes";
    assert_eq!(here.to_string(), sentence);
    assert!(matches!(other, Fault::Circle { .. }), "{other}");
}

/// What a process has too much of may go by a commit of another rank, too: its part of a step that
/// is not whole, or steps that the next one takes the place of.
#[test]
fn a_commit_of_another_rank_makes_room() {
    for policy in [Policy::Block, Policy::Latest] {
        let mut stage = Stage::new(1 << 20);
        let (own, reader) = stage.stream(0, "own", 10);
        let shared = [0, 1].map(|rank| stage.writer(rank, 2, &config()));
        let follower = stage.reader(10, group("viewer", policy));
        if policy == Policy::Latest {
            // It stays in the queue until there is another one.
            stage.write_text(0, shared[0], 0, 3 * PART);
            stage.write_text(1, shared[1], 0, 10);
        }
        let step = u64::from(policy == Policy::Latest);
        stage.write_text(0, own, 0, PART);
        assert_eq!(stage.drain(10, reader), [0]);
        let rest = if policy == Policy::Latest { 3 } else { 6 };
        stage.write_text(0, shared[0], step, rest * PART);
        let next = stage.next(10, reader);
        let ticket = stage.begin_at(own, 1, Vec::new());
        assert!(stage.waits(ticket), "there is no room");
        stage.pass(1000);
        let fault = stage.still_waits(ticket);
        assert!(matches!(fault, Fault::TooMuchOpen { .. }), "{fault}");
        assert!(matches!(stage.still_waits(next), Fault::NoStep { .. }));
        let ticket = stage.begin_at(own, 1, Vec::new());
        stage.write_text(1, shared[1], step, 10);
        if policy == Policy::Block {
            assert_eq!(stage.drain(10, follower), [0]);
        }
        assert_eq!(stage.buffers(ticket), [], "{policy:?}");
    }
}

/// One that was let in waits for a block store, whatever else its process has.
#[test]
fn who_was_let_in_waits_for_no_reader() {
    let mut stage = Stage::new(1 << 20);
    let (own, reader) = stage.stream(0, "own", 10);
    for step in 0..6 {
        stage.write_text(0, own, step, PART);
    }
    let holds = [(); 6].map(|()| stage.next(10, reader));
    let want = Want {
        block_store: BLOCK_STORE,
        bytes: 1,
    };
    stage.obeys = false;
    let mut ticket = stage.begin_at(own, 6, vec![want]);
    assert!(stage.waits(ticket));
    stage.release(10, reader, holds[0]);
    let next = stage.next(10, reader);
    let (more, _) = stage.stream(0, "more", 10);
    stage.write_text(0, more, 0, PART);
    let (buffer, had_by) = (stage.asked, Some(Peer(7)));
    stage.say(
        BLOCK_STORE,
        Request::Report(Report::Full { buffer, had_by }),
    );
    stage.pass(1000);
    let fault = stage.still_waits(ticket);
    assert!(matches!(fault, Fault::StillInUse { .. }), "{fault}");
    assert!(matches!(stage.still_waits(next), Fault::NoStep { .. }));
    stage.release(10, reader, holds[1]);
    ticket = stage.begin_at(own, 6, vec![want]);
    let (buffer, handle) = (stage.asked, Handle::default());
    stage.say(
        BLOCK_STORE,
        Request::Report(Report::Allocated { buffer, handle }),
    );
    assert_eq!(stage.buffers(ticket).len(), 1);
}

/// A filter that is at its limit by what it writes may read on.
#[test]
fn who_has_too_much_unread_may_read() {
    let mut stage = Stage::new(1 << 20);
    let (raw, filter) = stage.stream(0, "raw", 1);
    let (smooth, _) = stage.stream(1, "smooth", 2);
    for step in 0..5 {
        stage.write_text(0, raw, step, 10);
        stage.write_text(1, smooth, step, PART);
    }
    stage.write_text(0, raw, 5, 10);
    let ticket = stage.begin_as(1, smooth, 5, Vec::new());
    assert_eq!(stage.buffers(ticket), []);
    // What was begun may be more than the last one was.
    stage.commit_text(1, smooth, 5, 4 * PART);
    for step in 0..6 {
        let next = stage.next(1, filter);
        assert_eq!(stage.record(next).step, step);
    }
}

/// A rank that computes makes no room where another one, which waits, has not committed the step
/// either.
#[test]
fn a_rank_that_computes_beside_a_circle() {
    let mut stage = Stage::new(1 << 20);
    let there = [0, 2].map(|peer| stage.rank_of(peer, "there", peer / 2, 2));
    let follower = stage.follow(1, "there", Policy::Block);
    let (back, other) = stage.stream(0, "back", 1);
    for step in 0..6 {
        stage.write_text(0, there[0], step, PART);
        stage.write_text(2, there[1], step, 10);
    }
    let next = stage.next(1, other);
    let ticket = stage.begin_as(0, there[0], 6, Vec::new());
    assert!(stage.waits(ticket));
    stage.pass(1000);
    let fault = stage.fault(ticket);
    let sentence = "this wait would never end, because there.0 waits for capacity in there until viewer.0 reads, and viewer.0 waits for back.0 to commit step 0 of back: raise a limit, or change the order in which one of them reads or writes";
    assert_eq!(fault.to_string(), sentence);
    assert!(matches!(stage.fault(next), Fault::Circle { .. }));
    // Nor is a stream of its own named, which keeps what was read.
    assert_eq!(stage.drain(1, follower), [0, 1, 2, 3, 4, 5]);
    let ticket = stage.begin_as(0, back, 0, Vec::new());
    assert_eq!(stage.buffers(ticket), []);
}

/// A group without a limit is opened beside steps that readers have still to take.
#[test]
fn a_group_without_a_limit_is_opened() {
    let mut stage = Stage::new(1 << 20);
    let (own, _) = stage.stream(0, "own", 10);
    for step in 0..6 {
        stage.write_text(0, own, step, PART);
    }
    stage.writer_of(1, "other");
    let ticket = stage.ask(Peer(0), |ticket| Request::OpenReader {
        ticket,
        stream: "other".into(),
        reader: Box::new(Reader {
            limits: Some(Limits {
                steps: u64::MAX,
                bytes: u64::MAX,
            }),
            ..group("viewer", Policy::Block)
        }),
        timeout: 0,
        gives_up: false,
    });
    assert!(matches!(stage.answer(ticket), Answer::Reading { .. }));
}
