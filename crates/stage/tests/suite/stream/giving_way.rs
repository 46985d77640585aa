//! Which steps and requests give way to a request for memory.

use super::*;

/// Steps that are only retained, and those that a group may lose, are dropped for the writer of
/// any stream, and no more of them than it needs.
#[test]
fn retained_steps_give_way_to_another_stream() {
    for (unread, retain) in [(Unread::Discard, 3), (Unread::Block, 0)] {
        let mut stage = Stage::new(4 * 128);
        let config = StreamConfig {
            unread,
            retain: Retain {
                steps: retain,
                bytes: 0,
            },
            ..config()
        };
        let first = stage.writer(0, 1, &config);
        if unread == Unread::Block {
            let reader = Reader {
                limits: Some(Limits {
                    steps: 3,
                    bytes: 1 << 20,
                }),
                ..group("viewer", Policy::DropOldest)
            };
            stage.reader(10, reader);
        }
        for step in 0..3 {
            stage.write(first, step);
        }
        let other = stage.writer_of(1, "other");
        let want = Want {
            block_store: BLOCK_STORE,
            bytes: 256,
        };
        let ticket = stage.begin_as(1, other, 0, vec![want]);
        assert_eq!(stage.buffers(ticket).len(), 1);
        assert_eq!(stage.coordinator.figures()[0].stored, 2);
    }
}

/// A stream loses no steps for memory that they do not have: those at another block store stay.
#[test]
fn retained_steps_elsewhere_do_not_give_way() {
    let want = |block_store, bytes| Want { block_store, bytes };
    for (oldest, stored) in [(SECOND, 3), (BLOCK_STORE, 2)] {
        let mut stage = Stage::new(4 * 128);
        let keep = Request::Keep {
            memory: 4 * 128,
            buffers: 1000,
            disk: 0,
        };
        stage.say(SECOND, keep);
        let config = StreamConfig {
            unread: Unread::Discard,
            retain: Retain { steps: 3, bytes: 0 },
            ..config()
        };
        let field = stage.writer(0, 1, &config);
        for (step, block_store) in [(0, oldest), (1, SECOND), (2, SECOND)] {
            let ticket = stage.begin_at(field, step, vec![want(block_store, 128)]);
            let buffers = stage.buffers(ticket);
            let ticket = stage.commit(field, step, line(&[(0, 16)]), &buffers);
            assert_eq!(stage.answer(ticket), Answer::Committed);
        }
        // The open step, which cannot give way, makes it a user of the first block store.
        stage.begin(field, 3, 8);
        let other = stage.writer_of(1, "other");
        let ticket = stage.begin_as(1, other, 0, vec![want(BLOCK_STORE, 4 * 128)]);
        assert!(stage.waits(ticket));
        assert_eq!(stage.coordinator.figures()[0].stored, stored);
    }
}

/// A step that is only retained gives way although a reader holds it: it is freed when the reader
/// releases it, and nothing else has to happen.
#[test]
fn a_held_step_gives_way_when_it_is_released() {
    let mut stage = Stage::new(2 * 128);
    let config = StreamConfig {
        unread: Unread::Discard,
        retain: Retain { steps: 2, bytes: 0 },
        ..config()
    };
    let field = stage.writer(0, 1, &config);
    let reader = stage.reader(10, group("viewer", Policy::Block));
    for step in 0..2 {
        stage.write(field, step);
    }
    let holds = [(); 2].map(|()| stage.next(10, reader));
    let other = stage.writer_of(1, "other");
    let want = Want {
        block_store: BLOCK_STORE,
        bytes: 128,
    };
    let ticket = stage.begin_as(1, other, 0, vec![want]);
    assert!(stage.waits(ticket));
    stage.release(10, reader, holds[0]);
    assert_eq!(stage.buffers(ticket).len(), 1);
}

/// A step that is only retained gives way when it is sealed, although nothing else follows from
/// that.
#[test]
fn a_step_gives_way_when_it_is_sealed() {
    let mut stage = Stage::new(128);
    let config = StreamConfig {
        unread: Unread::Discard,
        retain: Retain { steps: 1, bytes: 0 },
        ..config()
    };
    let field = stage.writer(0, 1, &config);
    let begun = stage.begin(field, 0, 128);
    let buffers = stage.buffers(begun);
    stage.obeys = false;
    let ticket = stage.commit(field, 0, line(&[(0, 16)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    let other = stage.writer_of(1, "other");
    let want = Want {
        block_store: BLOCK_STORE,
        bytes: 128,
    };
    let ticket = stage.begin_as(1, other, 0, vec![want]);
    assert!(stage.waits(ticket));
    stage.obeys = true;
    let buffer = buffers[0].buffer;
    stage.say(BLOCK_STORE, Request::Report(Report::Sealed { buffer }));
    assert_eq!(stage.buffers(ticket).len(), 1);
}

/// A request that was set aside holds up nobody as long as it is not repeated: its process may
/// commit or abort the step.
#[test]
fn a_request_that_was_set_aside_is_not_half_written() {
    let mut stage = Stage::new(4 * 128);
    let field = stage.writer(0, 1, &config());
    stage.begin(field, 0, 2 * 128);
    let want = |bytes| {
        let block_store = BLOCK_STORE;
        vec![Want { block_store, bytes }]
    };
    let other = stage.writer_of(1, "other");
    let begun = stage.begin_as(1, other, 0, want(128));
    assert_eq!(stage.buffers(begun).len(), 1);
    let more = stage.ask(Peer(1), |ticket| Request::Reserve {
        ticket,
        writer: other,
        wants: want(3 * 128),
        timeout: 1000,
    });
    stage.pass(1000);
    stage.still_waits(more);
    let last = stage.writer_of(3, "last");
    let behind = stage.begin_as(3, last, 0, want(128));
    stage.pass(1000);
    let fault = stage.still_waits(behind);
    assert!(matches!(fault, Fault::NoMemory { .. }), "{fault}");
}

/// A step that has given all of its memory back is not half-written: another stream waits for
/// living processes, and not for it.
#[test]
fn a_step_without_memory_blocks_no_other_stream() {
    let mut stage = Stage::new(4 * 128);
    let field = stage.writer(0, 1, &config());
    stage.begin(field, 0, 2 * 128);
    let want = |bytes| {
        let block_store = BLOCK_STORE;
        vec![Want { block_store, bytes }]
    };
    let ranks = [0, 1].map(|rank| stage.rank_of(rank + 1, "other", rank, 2));
    let first = stage.begin_as(1, ranks[0], 0, want(128));
    assert_eq!(stage.buffers(first).len(), 1);
    let second = stage.begin_as(2, ranks[1], 0, want(3 * 128));
    stage.say(Peer(1), Request::Abort { writer: ranks[0] });
    let last = stage.writer_of(3, "last");
    let behind = stage.begin_as(3, last, 0, want(3 * 128));
    stage.pass(1000);
    for ticket in [second, behind] {
        let fault = stage.still_waits(ticket);
        assert!(matches!(fault, Fault::NoMemory { .. }), "{fault}");
    }
}
