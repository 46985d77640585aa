//! Which waits outlast their deadline: those for living processes that make progress.

use super::*;

#[test]
fn memory_that_does_not_come() {
    let mut stage = Stage::new(3 * 128);
    let writer = stage.writer(0, 1, &config());
    let wide = Reader {
        limits: Some(Limits {
            steps: 100,
            bytes: 1 << 20,
        }),
        ..group("viewer", Policy::Block)
    };
    let reader = stage.reader(10, wide);
    for step in 0..3 {
        stage.write(writer, step);
    }
    // Its reader lives, and will let go of what it has.
    let ticket = stage.begin(writer, 3, 128);
    stage.pass(1000);
    let sentence = "no memory for 128 bytes became free in time: 384 of 384 bytes are in use at peer 100; make the readers faster, or give it more memory: memory.budget on its node, or --memory of a staging server";
    assert_eq!(stage.still_waits(ticket).to_string(), sentence);
    // Not one that waits itself, for the step that the writer has no memory for.
    let holds = [(); 3].map(|()| stage.next(10, reader));
    let circle = stage.next(10, reader);
    let ticket = stage.begin(writer, 3, 128);
    stage.pass(1000);
    assert_eq!(stage.fault(ticket).to_string(), sentence);
    assert!(matches!(stage.still_waits(circle), Fault::NoStep { .. }));
    for hold in holds {
        assert!(stage.record(hold).step < 3);
    }
    let ticket = stage.begin(writer, 3, 385);
    assert!(matches!(
        stage.fault(ticket),
        Fault::TooLarge {
            bytes: 385,
            limit: 384,
            ..
        }
    ));
    let ticket = stage.begin_at(
        writer,
        3,
        vec![Want {
            block_store: Peer(55),
            bytes: 1,
        }],
    );
    assert_eq!(
        stage.fault(ticket),
        Fault::NoBlockStore {
            block_store: Peer(55).into()
        }
    );
}

/// Two writers wait for the memory that one reader of both streams has, which computes: it lives,
/// and they hold up nobody.
#[test]
fn two_writers_wait_for_a_reader_that_lives() {
    let mut stage = Stage::new(4 * 128);
    let first = stage.writer(0, 1, &config());
    let second = stage.writer_of(1, "other");
    let wide = || Reader {
        limits: Some(Limits {
            steps: 100,
            bytes: 1 << 20,
        }),
        ..group("viewer", Policy::Block)
    };
    stage.reader(10, wide());
    let ticket = stage.ask(Peer(10), |ticket| Request::OpenReader {
        ticket,
        stream: "other".into(),
        reader: Box::new(wide()),
        timeout: 0,
        gives_up: false,
    });
    assert!(matches!(stage.answer(ticket), Answer::Reading { .. }));
    for step in 0..4 {
        stage.write(first, step);
    }
    let want = Want {
        block_store: BLOCK_STORE,
        bytes: 128,
    };
    let waits = [
        stage.begin_at(first, 4, vec![want]),
        stage.begin_as(1, second, 0, vec![want]),
    ];
    stage.pass(1000);
    for ticket in waits {
        let fault = stage.still_waits(ticket);
        assert!(matches!(fault, Fault::NoMemory { .. }), "{fault}");
    }
}

/// Every rank that waits is told what is missing, and not only the first one.
#[test]
fn what_waits_behind_another_request_is_told_what_is_missing() {
    let mut stage = Stage::new(3 * 128);
    let first = stage.writer(0, 1, &config());
    stage.begin(first, 0, 256);
    let want = |bytes| Want {
        block_store: BLOCK_STORE,
        bytes,
    };
    let ranks = [0, 1].map(|rank| stage.rank_of(rank + 1, "other", rank, 2));
    let last = stage.writer_of(3, "last");
    let waits = [
        stage.begin_as(1, ranks[0], 0, vec![want(192)]),
        stage.begin_as(2, ranks[1], 0, vec![want(8)]),
        stage.begin_as(3, last, 0, vec![want(8)]),
    ];
    stage.pass(1000);
    for ticket in waits {
        let sentence = stage.still_waits(ticket).to_string();
        let begins =
            "no memory for 64 bytes became free in time: 256 of 384 bytes are in use at peer 100;";
        assert!(sentence.starts_with(begins), "{sentence}");
    }
}

/// A request that is repeated after its deadline has the place that it had: a smaller one does not
/// overtake it meanwhile. A rank that aborts instead gives its place up.
#[test]
fn a_request_keeps_its_place_beyond_its_deadline() {
    for aborts in [false, true] {
        let mut stage = Stage::new(4 * 128);
        let field = stage.writer(0, 1, &config());
        let wide = Reader {
            limits: Some(Limits {
                steps: 100,
                bytes: 1 << 20,
            }),
            ..group("viewer", Policy::Block)
        };
        let reader = stage.reader(10, wide);
        for step in 0..4 {
            stage.write(field, step);
        }
        let mut holds = [(); 4].map(|()| stage.next(10, reader)).into_iter();
        let large = stage.writer_of(1, "large");
        let small = stage.writer_of(2, "small");
        let want = |bytes| Want {
            block_store: BLOCK_STORE,
            bytes,
        };
        let first = stage.begin_as(1, large, 0, vec![want(256)]);
        stage.pass(500);
        let second = stage.begin_as(2, small, 0, vec![want(128)]);
        stage.pass(500);
        let fault = stage.still_waits(first);
        assert!(matches!(fault, Fault::NoMemory { .. }), "{fault}");
        if aborts {
            stage.say(Peer(1), Request::Abort { writer: large });
        }
        stage.release(10, reader, holds.next().expect("it holds four"));
        assert_eq!(stage.waits(second), !aborts, "the first one wants more");
        if !aborts {
            let first = stage.begin_as(1, large, 0, vec![want(256)]);
            assert!(stage.waits(first));
            stage.release(10, reader, holds.next().expect("it holds three"));
            assert_eq!(stage.buffers(first).len(), 1);
            assert!(stage.waits(second));
        }
    }
}

#[test]
fn a_silent_block_store_has_a_deadline_too() {
    let mut stage = Stage::new(1024);
    let writer = stage.writer(0, 1, &config());
    stage.obeys = false;
    let ticket = stage.begin(writer, 0, 100);
    stage.pass(1000);
    assert_eq!(
        stage.fault(ticket),
        Fault::BlockStoreSilent {
            block_store: BLOCK_STORE.into(),
            bytes: 100
        }
    );
    assert_eq!(stage.coordinator.admission().used_at(BLOCK_STORE), 0);
}

/// A request is granted just before its deadline: the block store did not delay it.
#[test]
fn a_grant_at_the_deadline_leaves_the_block_store_a_moment() {
    let mut stage = Stage::new(256);
    let field = stage.writer(0, 1, &config());
    let wide = Reader {
        limits: Some(Limits {
            steps: 100,
            bytes: 1 << 20,
        }),
        ..group("viewer", Policy::Block)
    };
    let reader = stage.reader(10, wide);
    for step in 0..2 {
        stage.write(field, step);
    }
    let hold = stage.next(10, reader);
    let ticket = stage.begin(field, 2, 128);
    stage.pass(999);
    stage.obeys = false;
    stage.release(10, reader, hold);
    stage.pass(1);
    stage.still_waits(ticket);
    let asked = stage.asked;
    // The writer's own time is over: it asks once more, and hears what it had waited for.
    let ticket = stage.ask(Peer(0), |ticket| Request::Begin {
        ticket,
        writer: field,
        step: 2,
        wants: vec![Want {
            block_store: BLOCK_STORE,
            bytes: 128,
        }],
        timeout: 0,
    });
    stage.pass(0);
    let fault = stage.still_waits(ticket);
    assert!(matches!(fault, Fault::NoMemory { .. }), "{fault}");
    let ticket = stage.begin(field, 2, 128);
    stage.pass(1000);
    assert!(matches!(
        stage.fault(ticket),
        Fault::BlockStoreSilent { .. }
    ));
    assert_eq!(stage.asked, asked, "the buffer was allocated anew");
}

/// The last rank commits just before the deadlines of a reader and of another rank: the block store
/// did not delay them. It has a moment to seal the step, and no more.
#[test]
fn a_commit_at_the_deadline_leaves_the_block_store_a_moment() {
    for seals in [true, false] {
        let mut stage = Stage::new(1024);
        let ranks = [0, 1].map(|rank| stage.writer(rank, 2, &config()));
        let reader = stage.reader(10, group("viewer", Policy::Block));
        let begun = ranks.map(|rank| stage.begin(rank, 0, 128));
        let buffers = begun.map(|ticket| stage.buffers(ticket));
        let first = stage.commit(ranks[0], 0, line(&[(0, 8)]), &buffers[0]);
        assert_eq!(stage.answer(first), Answer::Committed);
        let step = stage.next(10, reader);
        let next = stage.begin(ranks[0], 1, 128);
        stage.pass(999);
        stage.obeys = false;
        let last = stage.commit(ranks[1], 0, line(&[(8, 16)]), &buffers[1]);
        assert_eq!(stage.answer(last), Answer::Committed);
        stage.pass(1);
        for ticket in [step, next] {
            let Fault::NoStep { whom, .. } = stage.still_waits(ticket) else {
                panic!("it does not wait for a step");
            };
            assert_eq!(whom, "peer 100 to seal step 0");
        }
        let step = stage.next(10, reader);
        let next = stage.begin(ranks[0], 1, 128);
        if seals {
            stage.obeys = true;
            let buffer = buffers[1][0].buffer;
            stage.say(BLOCK_STORE, Request::Report(Report::Sealed { buffer }));
            assert_eq!(stage.record(step).step, 0);
            assert_eq!(stage.buffers(next).len(), 1);
        } else {
            stage.pass(1000);
            for ticket in [step, next] {
                assert!(matches!(stage.fault(ticket), Fault::NoStep { .. }));
            }
        }
    }
}

/// A reader that waits only for a step to be sealed blocks nobody: the memory of the steps that it
/// holds will be freed.
#[test]
fn a_reader_that_waits_for_a_step_to_be_sealed_delays_nobody() {
    let mut stage = Stage::new(2 * 128);
    let other = stage.writer_of(1, "other");
    let field = stage.writer(0, 1, &config());
    let readers = ["other", "field"].map(|stream| {
        let ticket = stage.ask(Peer(10), |ticket| Request::OpenReader {
            ticket,
            stream: stream.into(),
            reader: Box::new(group("viewer", Policy::Block)),
            timeout: 0,
            gives_up: false,
        });
        match stage.answer(ticket) {
            Answer::Reading { reader, .. } => reader,
            other => panic!("{other:?}"),
        }
    });
    let want = || {
        let (block_store, bytes) = (BLOCK_STORE, 128);
        vec![Want { block_store, bytes }]
    };
    let begun = stage.begin_as(1, other, 0, want());
    let buffers = stage.buffers(begun);
    let slots = vec![Slot::from_elem(buffers[0].buffer, 1)];
    let part = Part {
        step: 0,
        layout: LayoutRef::New(Arc::new(line(&[(0, 16)]))),
        slots,
        places: BlockOffsets::Packed,
        attributes: Vec::new(),
        checksum: 0,
    };
    let committed = stage.ask(Peer(1), |ticket| Request::Commit {
        ticket,
        writer: other,
        part,
        keep: false,
    });
    assert_eq!(stage.answer(committed), Answer::Committed);
    let held = stage.next(10, readers[0]);
    assert_eq!(stage.record(held).step, 0);
    let begun = stage.begin(field, 0, 128);
    let buffers = stage.buffers(begun);
    let next = stage.next(10, readers[1]);
    let ticket = stage.begin_as(1, other, 1, want());
    stage.pass(999);
    stage.obeys = false;
    let committed = stage.commit(field, 0, line(&[(0, 16)]), &buffers);
    assert_eq!(stage.answer(committed), Answer::Committed);
    stage.pass(1);
    let fault = stage.still_waits(ticket);
    assert!(matches!(fault, Fault::NoMemory { .. }), "{fault}");
    assert!(matches!(stage.still_waits(next), Fault::NoStep { .. }));
}

/// A stream that nobody reads keeps its memory. A request for memory of another block store waits
/// for its own stream only.
#[test]
fn a_stream_without_memory_at_a_block_store_delays_nobody_there() {
    for (block_store, waits) in [(SECOND, true), (BLOCK_STORE, false)] {
        let mut stage = Stage::new(256);
        let (memory, buffers, disk) = (256, 1000, 0);
        let keep = Request::Keep {
            memory,
            buffers,
            disk,
        };
        stage.say(SECOND, keep);
        let other = stage.writer_of(0, "other");
        let bytes = 128;
        let ticket = stage.begin_at(other, 0, vec![Want { block_store, bytes }]);
        let buffers = stage.buffers(ticket);
        let ticket = stage.commit(other, 0, line(&[(0, 16)]), &buffers);
        assert_eq!(stage.answer(ticket), Answer::Committed);
        let field = stage.writer(0, 1, &config());
        let reader = stage.reader(10, group("viewer", Policy::Block));
        stage.write(field, 0);
        let held = stage.next(10, reader);
        assert_eq!(stage.record(held).step, 0);
        // More than what is free, in both cases.
        let ticket = stage.begin(field, 1, 256);
        stage.pass(1000);
        let fault = match waits {
            true => stage.still_waits(ticket),
            false => stage.fault(ticket),
        };
        assert!(matches!(fault, Fault::NoMemory { .. }), "{fault}");
    }
}

/// What was freed is still had by the writer of a stream that has failed: its block store says so,
/// and the next one waits for as long as that writer computes. It is not waited for when it waits
/// itself.
#[test]
fn freed_memory_that_is_in_use_is_waited_for() {
    let mut stage = Stage::new(1024);
    let writer = stage.writer(0, 1, &config());
    stage.obeys = false;
    for (had_by, waits) in [(Some(Peer(7)), true), (None, true), (Some(Peer(0)), false)] {
        let ticket = stage.begin(writer, 0, 100);
        let buffer = stage.asked;
        stage.say(
            BLOCK_STORE,
            Request::Report(Report::Full { buffer, had_by }),
        );
        stage.pass(1000);
        let fault = match waits {
            true => stage.still_waits(ticket),
            false => stage.fault(ticket),
        };
        let expected = Fault::StillInUse {
            block_store: BLOCK_STORE.into(),
            bytes: 100,
        };
        assert_eq!(fault, expected);
    }
    assert_eq!(stage.coordinator.admission().used_at(BLOCK_STORE), 0);
}

/// A reader that waits for the disk waits for nobody who waits: memory that it has, or that is on
/// its way to disk, comes.
#[test]
fn a_reader_that_waits_for_the_disk_holds_nobody_up() {
    let mut stage = Stage::new(3 * 128);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Spill));
    stage.holds_spills = true;
    for step in 0..3 {
        stage.write(writer, step);
    }
    let asked = stage.at(10, reader, 2);
    stage.pass(500);
    let ticket = stage.begin(writer, 3, 128);
    let [Report::Spilled { buffer }] = stage.held_spills[..] else {
        panic!("{:?}", stage.held_spills);
    };
    let working = Report::Working { buffer, parts: 1 };
    stage.say(BLOCK_STORE, Request::Report(working));
    stage.pass(500);
    assert!(matches!(stage.still_waits(asked), Fault::NoStep { .. }));
    stage.at(10, reader, 2);
    stage.pass(500);
    assert!(matches!(stage.still_waits(ticket), Fault::NoMemory { .. }));
}

/// A process that does not take what it is sent is given no steps meanwhile, holds nobody up, and
/// has them when it does.
#[test]
fn who_takes_no_messages_is_given_no_steps() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let limits = Some(Limits {
        steps: 4,
        bytes: 1 << 20,
    });
    let wide = |name| Reader {
        limits,
        ..group(name, Policy::Block)
    };
    let slow = stage.reader(10, wide("slow"));
    let other = stage.reader(11, wide("other"));
    stage.feed(Event::Slow(BTreeSet::from([Peer(10)])));
    let early = stage.next(10, slow);
    stage.write(writer, 0);
    assert_eq!(stage.drain(11, other), [0]);
    let at = stage.at(10, slow, 0);
    stage.pass(1000);
    for ticket in [early, at] {
        let fault = stage.still_waits(ticket);
        assert!(
            matches!(&fault, Fault::NoStep { whom, .. } if whom.contains("its own process")),
            "{fault}"
        );
    }
    let next = stage.next(10, slow);
    stage.write(writer, 1);
    assert!(stage.waits(next));
    stage.feed(Event::Slow(BTreeSet::new()));
    assert_eq!(stage.record(next).step, 0);
    stage.release(10, slow, next);
    assert_eq!(stage.drain(10, slow), [1]);
    // What is no step comes all the same.
    stage.feed(Event::Slow(BTreeSet::from([Peer(10)])));
    stage.close(writer);
    let end = stage.next(10, slow);
    assert_eq!(stage.answer(end), Answer::End(EndOfStream::Closed));
}

/// Who is waited for is named by process: the writer rank that has not committed, and the reader
/// ranks that hold steps or have taken fewer than others.
#[test]
fn waits_name_the_processes_that_are_waited_for() {
    let mut stage = Stage::new(1 << 20);
    let ranks = [stage.writer(0, 2, &config()), stage.writer(1, 2, &config())];
    let readers = [0, 1].map(|rank| {
        let (size, policy) = (2, Policy::Block);
        let reader = Reader {
            rank,
            size,
            ..group("viewer", policy)
        };
        stage.reader(10 + rank, reader)
    });
    let awaited = |stage: &Stage| -> Vec<(Peer, Vec<Peer>)> {
        let [stream] = &stage.coordinator.figures()[..] else {
            panic!("one stream is open");
        };
        let waits = stream.waits.iter();
        waits.map(|wait| (wait.peer, wait.on.clone())).collect()
    };
    let hold = stage.next(10, readers[0]);
    let writers = vec![Peer(0), Peer(1)];
    assert_eq!(awaited(&stage), [(Peer(10), writers)]);
    let write = |stage: &mut Stage, rank: usize, step| {
        let ticket = stage.begin(ranks[rank], step, 128);
        let buffers = stage.buffers(ticket);
        let from = 8 * rank as u64;
        let part = line(&[(from, from + 8)]);
        let ticket = stage.commit(ranks[rank], step, part, &buffers);
        assert_eq!(stage.answer(ticket), Answer::Committed);
    };
    write(&mut stage, 0, 0);
    assert_eq!(awaited(&stage), [(Peer(10), vec![Peer(1)])]);
    write(&mut stage, 1, 0);
    (0..2).for_each(|rank| write(&mut stage, rank, 1));
    // One step is in the queue, and rank 1 has yet to take the one that rank 0 holds.
    stage.begin(ranks[0], 2, 128);
    let behind = vec![Peer(10), Peer(11)];
    assert_eq!(awaited(&stage), [(Peer(0), behind)], "rank 0 holds step 0");
    stage.release(10, readers[0], hold);
    assert_eq!(awaited(&stage), [(Peer(0), vec![Peer(11)])]);
}

/// What a group has read is what its ranks say when they release steps, not all of these steps.
#[test]
fn a_release_tells_how_much_was_read() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    let read = |stage: &Stage| stage.coordinator.figures()[0].groups[0].read_bytes;
    for (step, bytes, sum) in [(0, 24, 24), (1, 0, 24), (2, u64::MAX, u64::MAX)] {
        stage.write(writer, step);
        let hold = stage.next(10, reader);
        assert_eq!(stage.record(hold).step, step);
        let release = |read| Request::Release { reader, hold, read };
        stage.say(Peer(10), release(bytes));
        assert_eq!(read(&stage), sum);
        // The hold is gone: this counts nothing.
        stage.say(Peer(10), release(8));
        assert_eq!(read(&stage), sum);
    }
}
