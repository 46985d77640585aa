//! Ranks, block stores and streams that come, go and die.

use super::*;

#[test]
fn a_reader_waits_for_the_stream_and_then_for_its_rank() {
    let mut stage = Stage::new(1 << 20);
    let open = |ticket| Request::OpenReader {
        ticket,
        stream: "field".into(),
        reader: Box::new(group("viewer", Policy::Block)),
        timeout: 1000,
        gives_up: false,
    };
    let first = stage.ask(Peer(10), open);
    let second = stage.ask(Peer(11), open);
    assert!(stage.waits(first));
    stage.writer(0, 1, &config());
    assert!(matches!(stage.answer(first), Answer::Reading { .. }));
    assert!(stage.waits(second), "the rank is taken");
    stage.feed(Event::Lost(Peer(10)));
    assert!(matches!(stage.answer(second), Answer::Reading { .. }));
}

#[test]
fn a_step_begins_when_the_one_before_is_whole() {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let ticket = stage.begin(zero, 0, 128);
    let buffers = stage.buffers(ticket);
    let ticket = stage.commit(zero, 0, line(&[(0, 8)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    let ahead = stage.begin(zero, 1, 128);
    stage.pass(1000);
    assert!(matches!(
        stage.still_waits(ahead),
        Fault::WriterBehind {
            rank: 1,
            step: 0,
            ..
        }
    ));
    let ahead = stage.begin(zero, 1, 128);
    let ticket = stage.begin(one, 0, 128);
    let buffers = stage.buffers(ticket);
    assert!(stage.waits(ahead));
    let ticket = stage.commit(one, 0, line(&[(8, 16)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    assert!(matches!(stage.answer(ahead), Answer::Begun { .. }));
    // And not at all where a rank has closed.
    stage.say(Peer(0), Request::Abort { writer: zero });
    stage.close(one);
    let never = stage.begin(zero, 1, 128);
    assert!(matches!(
        stage.fault(never),
        Fault::RankClosed {
            rank: 1,
            step: 1,
            ..
        }
    ));
}

#[test]
fn a_dead_writer_loses_only_what_it_had_not_committed() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 0);
    let ticket = stage.begin(writer, 1, 128);
    stage.buffers(ticket);
    stage.feed(Event::Lost(Peer(0)));
    assert_eq!(stage.buffers.len(), 1, "of step 0");
    // It comes back as another process, at the step that it lost.
    let ticket = stage.open_writer(1, "solver", 0, 1, &config());
    let Answer::Writing {
        committed: 1,
        next: 1,
        ..
    } = stage.answer(ticket)
    else {
        panic!("another step");
    };
    let begin = |step| {
        move |ticket| Request::Begin {
            ticket,
            writer,
            step,
            wants: vec![],
            timeout: 0,
        }
    };
    let ticket = stage.ask(Peer(1), begin(0));
    assert_eq!(stage.answer(ticket), Answer::Already { next: 1 });
    let again = |checksum| {
        move |ticket| Request::Commit {
            ticket,
            writer,
            part: Part {
                step: 0,
                layout: LayoutRef::New(Arc::new(line(&[(0, 16)]))),
                slots: vec![],
                places: BlockOffsets::Packed,
                attributes: vec![],
                checksum,
            },
            keep: true,
        }
    };
    let ticket = stage.ask(Peer(1), again(7));
    assert_eq!(stage.answer(ticket), Answer::Committed, "the same again");
    let ticket = stage.ask(Peer(1), again(8));
    assert_eq!(stage.fault(ticket), Fault::Differs { rank: 0, step: 0 });
    stage.feed(Event::Lost(Peer(1)));
    stage.pass(500);
    assert_eq!(
        stage.drain(10, reader),
        [0],
        "a dead writer's committed step"
    );
    let end = stage.next(10, reader);
    assert_eq!(stage.answer(end), Answer::End(failed(0)));
    let ticket = stage.open_writer(2, "solver", 0, 1, &config());
    assert!(matches!(stage.fault(ticket), Fault::Over { .. }));
    stage.say(Peer(10), Request::CloseReader { reader });
    assert_eq!(stage.coordinator.figures(), []);
    stage.writer(0, 1, &config());
}

/// A process that does not know that it has opened a rank, or a subscription, has none.
#[test]
fn an_opening_that_is_forgotten_leaves_no_rank_taken() {
    let mut stage = Stage::new(1 << 20);
    let forget = |stage: &mut Stage, peer, ticket| {
        stage.say(Peer(peer), Request::Forget { ticket });
    };
    // The request still waits for the stream.
    let early = stage.ask(Peer(10), |ticket| Request::OpenReader {
        ticket,
        stream: "field".into(),
        reader: Box::new(group("viewer", Policy::Block)),
        timeout: 1000,
        gives_up: false,
    });
    forget(&mut stage, 11, early);
    assert!(stage.waits(early), "another process forgets nothing of it");
    forget(&mut stage, 10, early);
    assert_eq!(stage.fault(early), Fault::NotOpen);
    // It has opened its rank.
    for (peer, is_taken) in [(0, false), (1, true)] {
        let ticket = stage.open_writer(peer, "solver", 0, 1, &config());
        assert!(matches!(stage.answer(ticket), Answer::Writing { .. }));
        forget(&mut stage, 7, ticket);
        if !is_taken {
            forget(&mut stage, u64::from(peer), ticket);
        }
    }
    let ticket = stage.open_writer(2, "solver", 0, 1, &config());
    assert!(matches!(stage.fault(ticket), Fault::RankTaken { .. }));
    for peer in [10, 11] {
        let ticket = stage.open_reader(peer, group("viewer", Policy::Block));
        assert!(matches!(stage.answer(ticket), Answer::Reading { .. }));
        forget(&mut stage, peer.into(), ticket);
    }
    // What it had opened by another request stays.
    let reader = stage.reader(10, group("viewer", Policy::Block));
    forget(&mut stage, 10, Ticket(0));
    let step = stage.next(10, reader);
    assert!(stage.waits(step));
    let ticket = stage.ask(Peer(10), |ticket| Request::OpenWatch {
        ticket,
        stream: "field".into(),
        interest: Box::new(Interest {
            variable: "u".into(),
            region: None,
        }),
        start: Start::Earliest,
        most: 9,
        timeout: 0,
    });
    assert!(matches!(stage.answer(ticket), Answer::Watching { .. }));
    assert_eq!(stage.coordinator.subscriptions(), 1);
    forget(&mut stage, 10, ticket);
    assert_eq!(stage.coordinator.subscriptions(), 0);
}

#[test]
fn a_part_of_a_dead_rank_stays_in_the_open_step() {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let ticket = stage.begin(zero, 0, 128);
    let buffers = stage.buffers(ticket);
    let ticket = stage.commit(zero, 0, line(&[(0, 8)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    stage.feed(Event::Lost(Peer(0)));
    let ticket = stage.begin(one, 0, 128);
    let buffers = stage.buffers(ticket);
    let ticket = stage.commit(one, 0, line(&[(8, 16)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    assert_eq!(stage.coordinator.figures()[0].committed, 1);
    let ahead = stage.begin(one, 1, 128);
    stage.buffers(ahead);
    stage.pass(500);
    assert_eq!(stage.coordinator.figures()[0].end, Some(failed(0)));
    let ticket = stage.begin(one, 1, 128);
    assert!(matches!(
        stage.fault(ticket),
        Fault::WriterFailed { rank: 0, .. }
    ));
    assert_eq!(stage.buffers.len(), 2, "the committed step");
}

#[test]
fn a_dead_reader_holds_up_nobody_beyond_its_lease() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 0);
    stage.write(writer, 1);
    let hold = stage.next(10, reader);
    stage.record(hold);
    stage.feed(Event::Lost(Peer(10)));
    assert_eq!(
        stage.buffers.len(),
        1,
        "what it held is free, what it has not taken is not"
    );
    stage.write(writer, 2);
    let third = stage.begin(writer, 3, 128);
    stage.pass(400);
    assert!(stage.waits(third));
    // It comes back in time, to where its group was.
    let back = stage.reader(11, group("viewer", Policy::Block));
    assert_eq!(back, reader);
    assert_eq!(stage.drain(11, back), [1, 2]);
    stage.buffers(third);
    stage.say(Peer(0), Request::Abort { writer });
    // And not in time.
    stage.write(writer, 3);
    stage.write(writer, 4);
    stage.feed(Event::Lost(Peer(11)));
    let fifth = stage.begin(writer, 5, 128);
    stage.pass(500);
    stage.buffers(fifth);
    assert_eq!(stage.buffers.len(), 1, "of the step that was begun");
}

/// The lease is for those that died: who is only slow to start misses nothing.
#[test]
fn a_rank_that_has_not_come_yet_has_longer_than_a_lease() {
    let patient = StreamConfig {
        linger: 3000,
        ..config()
    };
    let mut stage = Stage::new(1 << 20);
    let first = stage.writer(0, 2, &patient);
    let of_two = |rank| Reader {
        rank,
        size: 2,
        ..group("viewer", Policy::Block)
    };
    let reader = stage.reader(10, of_two(0));
    stage.pass(2999);
    let second = stage.writer(1, 2, &patient);
    stage.write_half(first, (0, 8));
    stage.write_half(second, (8, 16));
    assert_eq!(stage.drain(10, reader), [0]);
    // Nor is a step freed that the other rank has still to take.
    stage.pass(0);
    assert_eq!(stage.buffers.len(), 2);
    let late = stage.reader(11, of_two(1));
    assert_eq!(stage.drain(11, late), [0]);
    assert!(stage.buffers.is_empty());
}

#[test]
fn all_ranks_of_a_group_see_the_same_steps() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let of_two = |rank| Reader {
        rank,
        size: 2,
        ..group("viewer", Policy::Latest)
    };
    let (zero, one) = (stage.reader(10, of_two(0)), stage.reader(11, of_two(1)));
    for (step, taken) in [(0, true), (1, false), (2, true)] {
        stage.write(writer, step);
        if taken {
            let hold = stage.next(10, zero);
            assert_eq!(stage.record(hold).step, step);
            stage.release(10, zero, hold);
        }
    }
    assert_eq!(stage.buffers.len(), 2, "kept for the other rank");
    assert_eq!(stage.drain(11, one), [0, 2]);
    assert!(stage.buffers.is_empty());
}

#[test]
fn a_replica_survives_its_block_store_and_a_lone_copy_does_not() {
    let mut stage = Stage::new(1 << 20);
    stage.say(
        SECOND,
        Request::Keep {
            memory: 1 << 20,
            buffers: 1000,
            disk: 0,
        },
    );
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    for (step, block_stores) in [(0, vec![BLOCK_STORE, SECOND]), (1, vec![SECOND])] {
        let wants = block_stores
            .iter()
            .map(|&block_store| Want {
                block_store,
                bytes: 128,
            })
            .collect();
        let ticket = stage.begin_at(writer, step, wants);
        let slot: Slot<_> = stage.buffers(ticket).iter().map(|at| at.buffer).collect();
        let ticket = stage.commit_slots(
            writer,
            step,
            LayoutRef::New(Arc::new(line(&[(0, 16)]))),
            vec![slot],
            7,
        );
        assert_eq!(stage.answer(ticket), Answer::Committed);
    }
    stage.feed(Event::Lost(SECOND));
    stage
        .buffers
        .retain(|(block_store, _)| *block_store == BLOCK_STORE);
    let hold = stage.next(10, reader);
    let record = stage.record(hold);
    assert_eq!(
        record.parts[0].slots[0]
            .iter()
            .map(|at| at.block_store)
            .collect::<Vec<_>>(),
        [BLOCK_STORE]
    );
    stage.release(10, reader, hold);
    let lost = stage.next(10, reader);
    assert_eq!(
        stage.fault(lost),
        Fault::Damaged {
            step: 1,
            block_stores: vec![SECOND.into()]
        }
    );
    stage.write(writer, 2);
    assert_eq!(stage.drain(10, reader), [2], "it goes on");
}

#[test]
fn a_block_store_that_dies_under_a_writer() {
    let mut stage = Stage::new(1 << 20);
    stage.say(
        SECOND,
        Request::Keep {
            memory: 1 << 20,
            buffers: 1000,
            disk: 0,
        },
    );
    let writer = stage.writer(0, 1, &config());
    let ticket = stage.begin_at(
        writer,
        0,
        vec![Want {
            block_store: SECOND,
            bytes: 128,
        }],
    );
    let buffers = stage.buffers(ticket);
    stage.feed(Event::Lost(SECOND));
    let ticket = stage.commit(writer, 0, line(&[(0, 16)]), &buffers);
    assert_eq!(
        stage.fault(ticket),
        Fault::BlockStoreLost {
            block_store: SECOND.into(),
            step: 0
        }
    );
    stage.say(Peer(0), Request::Abort { writer });
    stage.write(writer, 0);
}

#[test]
fn no_step_in_time() {
    let mut stage = Stage::new(1 << 20);
    stage.writer(
        0,
        1,
        &StreamConfig {
            lease: 5000,
            ..config()
        },
    );
    let reader = stage.reader(10, group("viewer", Policy::Block));
    let ticket = stage.next(10, reader);
    assert_eq!(
        stage.coordinator.wake_at(),
        Some(stage.now + 500),
        "early: a lease that is no longer needed"
    );
    stage.pass(999);
    assert!(stage.waits(ticket));
    assert_eq!(stage.coordinator.wake_at(), Some(1000));
    stage.pass(1);
    assert!(matches!(
        stage.still_waits(ticket),
        Fault::NoStep { committed: 0, .. }
    ));
}

#[test]
fn a_step_that_everybody_committed_outlives_a_lease_while_its_block_store_is_silent() {
    let mut stage = Stage::new(1 << 20);
    let writers = [0, 1].map(|rank| stage.writer(rank, 2, &config()));
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write_half(writers[0], (0, 8));
    // The orders to seal the second half come late.
    let ticket = stage.begin(writers[1], 0, 64);
    let buffers = stage.buffers(ticket);
    stage.obeys = false;
    let ticket = stage.commit(writers[1], 0, line(&[(8, 16)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    stage.feed(Event::Lost(Peer(1)));
    stage.pass(5000);
    stage.obeys = true;
    let next = stage.next(10, reader);
    let buffer = buffers[0].buffer;
    stage.say(BLOCK_STORE, Request::Report(Report::Sealed { buffer }));
    assert_eq!(stage.record(next).step, 0);
    stage.release(10, reader, next);
    // The lease was over long ago.
    stage.pass(0);
    let next = stage.next(10, reader);
    assert_eq!(stage.answer(next), Answer::End(failed(1)));
}

impl Stage {
    /// A rank's half of step 0: 64 bytes.
    pub(super) fn write_half(&mut self, writer: WriterId, block: (u64, u64)) {
        let ticket = self.begin(writer, 0, 64);
        let buffers = self.buffers(ticket);
        let ticket = self.commit(writer, 0, line(&[block]), &buffers);
        assert_eq!(self.answer(ticket), Answer::Committed);
    }
}

/// A wait for a process that is gone, or never came, ends at its deadline; one for a living process
/// does not.
#[test]
fn only_who_lives_is_waited_for_beyond_a_deadline() {
    let mut stage = Stage::new(1 << 20);
    let patient = StreamConfig {
        lease: 5000,
        linger: 5000,
        ..config()
    };
    let (zero, one) = (stage.writer(0, 2, &patient), stage.writer(1, 2, &patient));
    let slow = Reader {
        lease: 5000,
        ..group("viewer", Policy::Block)
    };
    let reader = stage.reader(10, slow);
    let both = |stage: &mut Stage, step| {
        for (writer, block) in [(zero, (0, 8)), (one, (8, 16))] {
            let ticket = stage.begin(writer, step, 64);
            let buffers = stage.buffers(ticket);
            let ticket = stage.commit(writer, step, line(&[block]), &buffers);
            assert_eq!(stage.answer(ticket), Answer::Committed);
        }
    };
    both(&mut stage, 0);
    // Both ranks compute: the next step, and one after it, are waited for.
    assert_eq!(stage.drain(10, reader), [0]);
    let late = stage.at(10, reader, 7);
    stage.pass(1000);
    assert!(matches!(stage.still_waits(late), Fault::NoStep { .. }));
    // A reader that computes holds its writers up, one that has died does so until the deadline.
    both(&mut stage, 1);
    both(&mut stage, 2);
    let full = stage.begin(zero, 3, 64);
    stage.pass(1000);
    let behind = stage.still_waits(full);
    assert!(matches!(behind, Fault::ReadersBehind { .. }), "{behind}");
    stage.feed(Event::Lost(Peer(10)));
    let full = stage.begin(zero, 3, 64);
    stage.pass(1000);
    assert!(matches!(stage.fault(full), Fault::ReadersBehind { .. }));
    // Another one comes in its place; now a writer rank dies under it.
    let ticket = stage.open_reader(11, group("viewer", Policy::Block));
    assert!(matches!(stage.answer(ticket), Answer::Reading { .. }));
    assert_eq!(stage.drain(11, reader), [1, 2]);
    stage.feed(Event::Lost(Peer(1)));
    let dead = stage.next(11, reader);
    let ahead = stage.begin(zero, 3, 64);
    let buffers = stage.buffers(ahead);
    let ticket = stage.commit(zero, 3, line(&[(0, 8)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    let ahead = stage.begin(zero, 4, 64);
    stage.pass(1000);
    assert!(matches!(stage.fault(dead), Fault::NoStep { .. }));
    let (rank, step) = (1, 3);
    let stream = "field".to_owned();
    assert_eq!(
        stage.fault(ahead),
        Fault::WriterBehind {
            stream,
            program: "solver".to_owned(),
            rank,
            step
        }
    );
}
