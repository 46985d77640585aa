//! How long a block store that makes memory, or writes to its disk, is waited for.

use super::*;

/// A block store that does not say that a step is on its disk is waited for up to the deadline, and
/// beyond it as long as it spills others.
#[test]
fn a_block_store_that_does_not_spill_has_a_deadline() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Spill));
    stage.holds_spills = true;
    for step in 0..4 {
        stage.write(writer, step);
    }
    assert_eq!(stage.held_spills.len(), 2, "two stay in memory");
    let ticket = stage.at(10, reader, stage.coordinator.figures()[0].committed - 1);
    stage.pass(500);
    let report = stage.held_spills.remove(0);
    stage.say(BLOCK_STORE, Request::Report(report));
    stage.pass(500);
    let fault = stage.still_waits(ticket);
    assert!(fault.to_string().contains("to be on disk at"), "{fault}");
    let ticket = stage.at(10, reader, stage.coordinator.figures()[0].committed - 1);
    stage.pass(1000);
    let Fault::NoStep { whom, .. } = stage.fault(ticket) else {
        panic!("no step");
    };
    assert_eq!(whom, "step 3 to be on disk at peer 100");
}

/// A block store that makes the memory of a buffer part by part, or writes it to its disk so, is
/// waited for as long as one part comes in each deadline: within that of every question, whichever
/// buffer it is about.
#[test]
fn a_block_store_that_gets_on_is_waited_for() {
    let mut stage = Stage::new(1024);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    stage.obeys = false;
    let working = |stage: &mut Stage, buffer, parts| {
        stage.say(
            BLOCK_STORE,
            Request::Report(Report::Working { buffer, parts }),
        );
    };
    let silent = Fault::BlockStoreSilent {
        block_store: BLOCK_STORE.into(),
        bytes: 100,
    };
    let mut ticket = stage.begin(zero, 0, 100);
    for parts in 1..4 {
        stage.pass(500);
        let asked = stage.asked;
        working(&mut stage, asked, parts);
        stage.pass(500);
        assert_eq!(stage.still_waits(ticket), silent);
        ticket = stage.begin(zero, 0, 100);
    }
    // A part that it has told of before is none, nor is one beyond all bytes.
    let asked = stage.asked;
    working(&mut stage, asked, 4);
    stage.pass(500);
    assert_eq!(stage.asked, asked, "it is the same one that grows");
    let behind = stage.begin(one, 0, 100);
    stage.pass(100);
    working(&mut stage, asked, 4);
    working(&mut stage, asked, 101);
    stage.pass(400);
    assert_eq!(stage.still_waits(ticket), silent);
    stage.pass(500);
    assert_eq!(stage.fault(behind), silent);
    // One of another buffer counts for what waits behind that.
    stage.begin(zero, 0, 100);
    let behind = stage.begin(one, 0, 100);
    stage.pass(500);
    working(&mut stage, asked, 5);
    stage.pass(500);
    assert_eq!(stage.still_waits(behind), silent);
}

/// Two buffers that do not fit beside each other, and each take longer than a deadline to make: the
/// second waits for the first, however often both ask, and comes when the first is gone.
#[test]
fn a_buffer_is_made_across_deadlines() {
    let mut stage = Stage::new(1024);
    let (zero, one) = (stage.writer(0, 1, &config()), stage.writer_of(1, "other"));
    stage.obeys = false;
    let report = |stage: &mut Stage, report| stage.say(BLOCK_STORE, Request::Report(report));
    let want = |bytes| {
        let block_store = BLOCK_STORE;
        vec![Want { block_store, bytes }]
    };
    let mut first = stage.begin_at(zero, 0, want(600));
    let buffer = stage.asked;
    stage.pass(500);
    let mut second = stage.begin_as(1, one, 0, want(500));
    for parts in 1..10 {
        report(&mut stage, Report::Working { buffer, parts });
        stage.pass(500);
        assert_eq!(stage.asked, buffer, "no other one is begun");
        match parts % 2 {
            1 => {
                stage.still_waits(first);
                first = stage.begin_at(zero, 0, want(600));
            }
            _ => {
                stage.still_waits(second);
                second = stage.begin_as(1, one, 0, want(500));
            }
        }
    }
    // It may be whole while nobody asks.
    report(&mut stage, Report::Working { buffer, parts: 10 });
    stage.pass(1000);
    stage.still_waits(first);
    let handle = Handle::default();
    report(&mut stage, Report::Allocated { buffer, handle });
    first = stage.begin_at(zero, 0, want(600));
    assert_eq!(stage.buffers(first)[0].buffer, buffer);
    stage.still_waits(second);
    second = stage.begin_as(1, one, 0, want(500));
    stage.say(Peer(0), Request::Abort { writer: zero });
    let buffer = stage.asked;
    report(&mut stage, Report::Allocated { buffer, handle });
    assert_eq!(stage.buffers(second)[0].buffer, buffer);
    assert_eq!(stage.coordinator.admission().used_at(BLOCK_STORE), 500);
}

/// A process that has been granted memory, and waits elsewhere, does not get on with it.
#[test]
fn memory_of_a_process_that_waits_elsewhere_does_not_come() {
    let mut stage = Stage::new(1024);
    let first = stage.writer(0, 1, &config());
    let second = stage.writer_of(1, "second");
    let reader = stage.ask(Peer(0), |ticket| Request::OpenReader {
        ticket,
        stream: "second".into(),
        reader: Box::new(group("viewer", Policy::Block)),
        timeout: 0,
        gives_up: false,
    });
    let Answer::Reading { reader, .. } = stage.answer(reader) else {
        panic!("it is there");
    };
    stage.obeys = false;
    let ticket = stage.begin(first, 0, 600);
    let buffer = stage.asked;
    stage.say(
        BLOCK_STORE,
        Request::Report(Report::Working { buffer, parts: 1 }),
    );
    stage.pass(1000);
    stage.still_waits(ticket);
    let next = stage.next(0, reader);
    let want = Want {
        block_store: BLOCK_STORE,
        bytes: 600,
    };
    let ticket = stage.begin_as(1, second, 0, vec![want]);
    stage.pass(1000);
    let fault = stage.fault(ticket);
    assert!(matches!(fault, Fault::NoMemory { .. }), "{fault}");
    assert!(matches!(stage.still_waits(next), Fault::NoStep { .. }));
}

/// What block stores have made for a question that is not asked again is freed.
#[test]
fn what_was_made_for_nobody_is_freed() {
    for end in 0..4 {
        let mut stage = Stage::new(1024);
        let writer = stage.writer(0, 1, &config());
        stage.obeys = false;
        let ticket = stage.begin(writer, 0, 600);
        let buffer = stage.asked;
        stage.say(
            BLOCK_STORE,
            Request::Report(Report::Working { buffer, parts: 1 }),
        );
        stage.pass(1000);
        stage.still_waits(ticket);
        assert_eq!(stage.coordinator.admission().used_at(BLOCK_STORE), 600);
        match end {
            0 => {
                stage.begin(writer, 0, 500);
                assert_ne!(stage.asked, buffer, "another one is made");
            }
            1 => stage.say(Peer(0), Request::Abort { writer }),
            2 => stage.close(writer),
            _ => stage.feed(Event::Lost(Peer(0))),
        }
        let used = if end == 0 { 500 } else { 0 };
        assert_eq!(stage.coordinator.admission().used_at(BLOCK_STORE), used);
    }
}

/// The same of a step that is on its way to disk: parts of its buffer count as whole buffers do.
#[test]
fn a_block_store_that_spills_part_by_part_is_waited_for() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Spill));
    stage.holds_spills = true;
    for step in 0..3 {
        stage.write(writer, step);
    }
    let [Report::Spilled { buffer }] = stage.held_spills[..] else {
        panic!("{:?}", stage.held_spills);
    };
    for parts in 1..3 {
        let ticket = stage.at(10, reader, 2);
        stage.pass(500);
        stage.say(
            BLOCK_STORE,
            Request::Report(Report::Working { buffer, parts }),
        );
        stage.pass(500);
        assert!(matches!(stage.still_waits(ticket), Fault::NoStep { .. }));
    }
    let ticket = stage.at(10, reader, 2);
    stage.pass(1000);
    assert!(matches!(stage.fault(ticket), Fault::NoStep { .. }));
}
