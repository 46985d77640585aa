//! Writers that go on reading the step that they committed last.

use super::*;

/// A coordinator with that much memory, whose writers keep what they commit.
fn keeping(memory: u64) -> Stage {
    let mut stage = Stage::new(memory);
    stage.keeps = true;
    stage
}

fn numbers(stage: &Stage) -> Vec<u64> {
    let buffers = stage.buffers.iter();
    buffers.map(|(_, buffer)| buffer.number).collect()
}

/// Takes the next step, which is there, and lets it go.
fn read(stage: &mut Stage, reader: ReaderId) -> Step {
    let hold = stage.next(10, reader);
    let step = stage.record(hold).step;
    stage.release(10, reader, hold);
    step
}

/// Readers that may be so many steps behind.
fn at_most(steps: u64, policy: Policy) -> Reader {
    let bytes = 1 << 20;
    Reader {
        limits: Some(Limits { steps, bytes }),
        ..group("viewer", policy)
    }
}

#[test]
fn a_kept_step_stays_until_the_next_commit() {
    let mut stage = keeping(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    for step in 0..5 {
        stage.write(writer, step);
        assert_eq!(read(&mut stage, reader), step);
        assert_eq!(numbers(&stage), [step], "the last one, and none before");
    }
    let ticket = stage.begin(writer, 5, 128);
    let buffers = stage.buffers(ticket);
    stage.say(Peer(0), Request::Abort { writer });
    assert_eq!(numbers(&stage), [4], "given up: it can be begun again");
    // One that is refused.
    let ticket = stage.begin(writer, 5, 128);
    stage.buffers(ticket);
    let ticket = stage.commit(writer, 5, line(&[(0, 16)]), &buffers);
    assert!(matches!(stage.fault(ticket), Fault::ForeignBuffer { .. }));
    assert!(numbers(&stage).contains(&4), "it was not committed");
    stage.say(Peer(0), Request::Abort { writer });
    // One that is not kept.
    stage.keeps = false;
    stage.write(writer, 5);
    assert_eq!(read(&mut stage, reader), 5);
    assert!(stage.buffers.is_empty());
}

#[test]
fn who_is_gone_keeps_nothing() {
    for gone in ["closed", "lost", "ended"] {
        let mut stage = keeping(1 << 20);
        let ranks = if gone == "ended" { 2 } else { 1 };
        let writers: Vec<WriterId> = (0..ranks)
            .map(|rank| stage.writer(rank, ranks, &config()))
            .collect();
        let reader = stage.reader(10, group("viewer", Policy::Block));
        let part = 16 / u64::from(ranks);
        for (&writer, from) in writers.iter().zip((0..).step_by(part as usize)) {
            let ticket = stage.begin(writer, 0, 128);
            let buffers = stage.buffers(ticket);
            let ticket = stage.commit(writer, 0, line(&[(from, from + part)]), &buffers);
            assert_eq!(stage.answer(ticket), Answer::Committed);
        }
        assert_eq!(read(&mut stage, reader), 0);
        assert_eq!(numbers(&stage).len(), ranks as usize, "{gone}");
        match gone {
            "closed" => stage.close(writers[0]),
            _ => stage.feed(Event::Lost(Peer(0))),
        }
        if gone == "ended" {
            assert_eq!(numbers(&stage).len(), 2, "the other rank keeps it");
            stage.pass(500);
        }
        assert!(stage.buffers.is_empty(), "{gone}");
    }
}

/// A rank that dies between its commit and that of the others keeps nothing of the step either.
#[test]
fn a_dead_rank_keeps_nothing_of_the_open_step() {
    let mut stage = keeping(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let reader = stage.reader(10, group("viewer", Policy::Block));
    let ticket = stage.begin(zero, 0, 128);
    let buffers = stage.buffers(ticket);
    let ticket = stage.commit(zero, 0, line(&[(0, 8)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    stage.feed(Event::Lost(Peer(0)));
    let ticket = stage.begin(one, 0, 128);
    let buffers = stage.buffers(ticket);
    stage.keeps = false;
    let ticket = stage.commit(one, 0, line(&[(8, 16)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    assert_eq!(read(&mut stage, reader), 0);
    assert!(stage.buffers.is_empty());
}

#[test]
fn it_stands_in_no_queue() {
    let mut stage = keeping(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, at_most(1, Policy::Block));
    // The only step that may be behind is read, and kept: the writer goes on.
    for step in 0..5 {
        stage.write(writer, step);
        let next = stage.begin(writer, step + 1, 128);
        assert!(stage.waits(next), "one is unread");
        assert_eq!(read(&mut stage, reader), step);
        stage.buffers(next);
        stage.say(Peer(0), Request::Abort { writer });
    }
}

#[test]
fn memory_of_two_steps_is_enough_and_less_is_refused_at_once() {
    for policy in [Policy::Block, Policy::DropOldest, Policy::Latest] {
        let mut stage = keeping(256);
        let writer = stage.writer(0, 1, &config());
        let reader = stage.reader(10, at_most(1, policy));
        for step in 0..5 {
            stage.write(writer, step);
            assert_eq!(read(&mut stage, reader), step, "{policy:?}");
        }
        let mut stage = keeping(255);
        let writer = stage.writer(0, 1, &config());
        let reader = stage.reader(10, at_most(1, policy));
        stage.write(writer, 0);
        assert_eq!(read(&mut stage, reader), 0);
        let ticket = stage.begin(writer, 1, 128);
        let refused = stage.fault(ticket);
        assert!(
            matches!(
                refused,
                Fault::TooLarge {
                    bytes: 256,
                    limit: 255,
                    ..
                }
            ),
            "{refused:?}"
        );
    }
}

/// What was dropped from the queue is still kept; it was never more than the one step.
#[test]
fn drop_oldest_drops_what_is_not_kept() {
    let mut stage = keeping(256);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, at_most(2, Policy::DropOldest));
    for step in 0..6 {
        // From the third on there is no memory beside the two newest: the older one yields.
        stage.write(writer, step);
        assert!(stage.buffers.len() <= 2, "{:?}", stage.buffers);
    }
    assert_eq!(stage.drain(10, reader), [4, 5]);
}

#[test]
fn a_kept_step_is_not_spilled_and_then_it_is() {
    let mut stage = keeping(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, at_most(1, Policy::Spill));
    stage.write(writer, 0);
    stage.write(writer, 1);
    assert!(stage.spilled.is_empty(), "step 1 is beyond, and kept");
    stage.write(writer, 2);
    assert_eq!(stage.spilled, [1]);
    stage.close(writer);
    assert_eq!(stage.spilled, [1, 2]);
    assert_eq!(stage.drain(10, reader), [0, 1, 2]);
}
