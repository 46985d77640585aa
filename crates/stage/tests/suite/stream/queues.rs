//! Queue policies, budgets and what is kept.

use super::*;
use samite_stage::protocol::Expected;

#[test]
fn block_waits_at_the_limit_and_says_who_is_behind() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 0);
    stage.write(writer, 1);
    let third = stage.begin(writer, 2, 128);
    assert!(stage.waits(third));
    let hold = stage.next(10, reader);
    assert_eq!(stage.record(hold).step, 0);
    assert!(stage.waits(third), "held is not released");
    stage.release(10, reader, hold);
    assert_eq!(stage.buffers(third).len(), 1);
    stage.say(Peer(0), Request::Abort { writer });
    stage.pass(1);
    // Once more, to the deadline.
    let hold = stage.next(10, reader);
    stage.record(hold);
    stage.write(writer, 2);
    let fourth = stage.begin(writer, 3, 128);
    stage.pass(999);
    assert!(stage.waits(fourth));
    stage.pass(1);
    let behind = stage.still_waits(fourth);
    assert_eq!(
        behind.to_string(),
        "the reader group viewer of the stream field is 2 steps behind, which is its limit: \
         wait longer, raise the limit, or choose another policy for it"
    );
}

#[test]
fn nobody_reads() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    stage.write(writer, 0);
    stage.write(writer, 1);
    let third = stage.begin(writer, 2, 128);
    stage.pass(1000);
    assert!(matches!(
        stage.fault(third),
        Fault::NobodyReads { steps: 2, .. }
    ));
    // Who comes then finds everything from the beginning.
    let reader = stage.reader(10, group("viewer", Policy::Block));
    assert_eq!(stage.drain(10, reader), [0, 1]);
    assert!(stage.buffers.is_empty());
}

#[test]
fn unread_steps_can_be_discarded() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(
        0,
        1,
        &StreamConfig {
            unread: Unread::Discard,
            ..config()
        },
    );
    for step in 0..5 {
        stage.write(writer, step);
        assert!(stage.buffers.is_empty());
    }
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 5);
    assert_eq!(stage.drain(10, reader), [5]);
}

#[test]
fn expected_groups_find_everything_whoever_comes_first() {
    let mut stage = Stage::new(1 << 20);
    let expected = |group: &str, policy| Expected {
        group: group.into(),
        policy,
        limits: None,
    };
    let config = StreamConfig {
        expected: vec![
            expected("viewer", Policy::Block),
            expected("second", Policy::Every(2)),
        ],
        // Says nothing where somebody is expected.
        unread: Unread::Discard,
        ..config()
    };
    let writer = stage.writer(0, 1, &config);
    stage.write(writer, 0);
    stage.write(writer, 1);
    let viewer = stage.reader(10, group("viewer", Policy::Block));
    for step in 0..4 {
        let hold = stage.next(10, viewer);
        assert_eq!(stage.record(hold).step, step);
        stage.release(10, viewer, hold);
        if step < 2 {
            stage.write(writer, step + 2);
        }
    }
    assert_eq!(stage.buffers.len(), 2, "0 and 2 are kept for the second");
    let fifth = stage.begin(writer, 4, 128);
    assert!(stage.waits(fifth));
    stage.pass(1000);
    let Fault::ReadersBehind { group: who, .. } = stage.fault(fifth) else {
        panic!("somebody is behind");
    };
    assert_eq!(who, "second");
    // A stranger does not take its place.
    stage.reader(11, group("stranger", Policy::Latest));
    assert_eq!(stage.buffers.len(), 2);
    let second = stage.reader(12, group("second", Policy::Every(2)));
    assert_eq!(stage.drain(12, second), [0, 2]);
}

#[test]
fn who_is_expected_and_never_comes_is_forgotten() {
    let mut stage = Stage::new(1 << 20);
    let config = StreamConfig {
        expected: vec![Expected {
            group: "viewer".into(),
            policy: Policy::Block,
            limits: None,
        }],
        ..config()
    };
    let writer = stage.writer(0, 1, &config);
    stage.write(writer, 0);
    stage.close(writer);
    assert_eq!(stage.buffers.len(), 1);
    stage.pass(200);
    assert!(stage.buffers.is_empty(), "its linger is over");
}

#[test]
fn dropping_policies_never_wait() {
    for (policy, expected) in [
        (Policy::DropOldest, vec![4, 5]),
        (Policy::DropNewest, vec![0, 1]),
        (Policy::Latest, vec![5]),
    ] {
        let mut stage = Stage::new(1 << 20);
        let writer = stage.writer(0, 1, &config());
        let reader = stage.reader(10, group("viewer", policy));
        for step in 0..6 {
            stage.write(writer, step);
        }
        assert_eq!(
            stage.buffers.len(),
            expected.len(),
            "{policy:?} keeps what it promises, no more"
        );
        assert_eq!(stage.drain(10, reader), expected, "{policy:?}");
        assert!(stage.buffers.is_empty());
    }
}

#[test]
fn every_second_step() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Every(2)));
    for step in 0..4 {
        stage.write(writer, step);
    }
    let blocked = stage.begin(writer, 4, 128);
    assert!(stage.waits(blocked), "0 and 2 wait, 4 is wanted");
    assert_eq!(stage.drain(10, reader), [0, 2]);
    stage.buffers(blocked);
}

#[test]
fn spill_keeps_everything_in_little_memory() {
    let mut stage = Stage::new(3 * 128);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Spill));
    for step in 0..8 {
        stage.write(writer, step);
        assert!(stage.coordinator.admission().used_at(BLOCK_STORE) <= 3 * 128);
    }
    assert_eq!(stage.spilled.len(), 6, "two stay in memory");
    let hold = stage.next(10, reader);
    let record = stage.record(hold);
    assert!(!record.parts[0].slots[0][0].on_disk);
    stage.release(10, reader, hold);
    let rest = stage.at(10, reader, 7);
    assert!(stage.record(rest).parts[0].slots[0][0].on_disk);
    stage.release(10, reader, rest);
    assert_eq!(stage.drain(10, reader), [1, 2, 3, 4, 5, 6, 7]);
    assert!(stage.buffers.is_empty());
}

#[test]
fn a_full_disk_makes_spill_wait() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let _reader = stage.reader(10, group("viewer", Policy::Spill));
    for step in 0..11 {
        stage.write(writer, step); // 2 in memory, 8 on a disk of 1024 bytes, and one that found it full
    }
    assert_eq!(stage.spilled.len(), 8);
    let ticket = stage.begin(writer, 11, 128);
    assert!(stage.waits(ticket));
}

#[test]
fn dropping_groups_give_way_when_memory_is_short() {
    let mut stage = Stage::new(3 * 128);
    let writer = stage.writer(0, 1, &config());
    let wide = Reader {
        limits: Some(Limits {
            steps: 100,
            bytes: 1 << 20,
        }),
        ..group("viewer", Policy::DropOldest)
    };
    let reader = stage.reader(10, wide);
    for step in 0..9 {
        stage.write(writer, step);
    }
    assert_eq!(stage.drain(10, reader), [6, 7, 8]);
}

#[test]
fn retained_and_precious_steps_are_there_by_number() {
    let mut stage = Stage::new(1 << 20);
    let retain = Retain { steps: 2, bytes: 0 };
    let writer = stage.writer(
        0,
        1,
        &StreamConfig {
            retain,
            precious_first: true,
            ..config()
        },
    );
    let reader = stage.reader(10, group("viewer", Policy::Latest));
    for step in 0..6 {
        stage.write(writer, step);
    }
    assert_eq!(stage.drain(10, reader), [5]);
    for step in [0, 4, 5] {
        let hold = stage.at(10, reader, step);
        assert_eq!(stage.record(hold).step, step);
        stage.release(10, reader, hold);
    }
    let gone = stage.at(10, reader, 3);
    assert!(matches!(
        stage.fault(gone),
        Fault::Gone {
            step: 3,
            oldest: Some(0),
            ..
        }
    ));
    let future = stage.at(10, reader, 6);
    assert!(stage.waits(future));
    stage.write(writer, 6);
    assert_eq!(stage.record(future).step, 6);
    let late = stage.reader(11, group("late", Policy::Block));
    assert_eq!(
        stage.drain(11, late),
        [0, 5, 6],
        "the precious one, then what is unbroken"
    );
    let never = Reader {
        start: Start::Step(2),
        ..group("never", Policy::Block)
    };
    let ticket = stage.open_reader(12, never);
    assert!(matches!(stage.fault(ticket), Fault::Gone { step: 2, .. }));
    let latest = stage.reader(
        13,
        Reader {
            start: Start::Latest,
            ..group("latest", Policy::Block)
        },
    );
    assert_eq!(stage.drain(13, latest), [6]);
}

#[test]
fn steps_without_bytes_are_freed_too() {
    let mut stage = Stage::new(1 << 20);
    let retained = |retain| StreamConfig {
        retain,
        unread: Unread::Discard,
        ..config()
    };
    let nothing = Retain { steps: 0, bytes: 0 };
    let writer = stage.writer(0, 1, &retained(nothing));
    for step in 0..5 {
        let ticket = stage.begin_at(writer, step, Vec::new());
        assert_eq!(stage.buffers(ticket), []);
        let nothing = Layout {
            variables: Vec::new(),
        };
        let ticket = stage.commit(writer, step, nothing, &[]);
        assert_eq!(stage.answer(ticket), Answer::Committed);
    }
    assert_eq!(stage.coordinator.figures()[0].stored, 0);
}

#[test]
fn a_slow_rank_of_a_dropping_group_does_not_fill_the_memory() {
    let policies = [
        Policy::DropOldest,
        Policy::DropNewest,
        Policy::Latest,
        Policy::Spill,
    ];
    for policy in policies {
        let mut stage = Stage::new(6 * 128);
        let writer = stage.writer(0, 1, &config());
        let rank = |rank| Reader {
            rank,
            size: 2,
            ..group("viewer", policy)
        };
        let [fast, slow] = [0, 1].map(|number| stage.reader(10 + number, rank(number)));
        let mut got = Vec::new();
        let mut asked = stage.next(10, fast);
        for step in 0..12 {
            stage.write(writer, step);
            while let Some(Answer::Step(record)) = stage.answers.remove(&asked) {
                got.push(record.step);
                stage.release(10, fast, asked);
                asked = stage.next(10, fast);
            }
        }
        assert_eq!(got, [0, 1], "{policy:?}: its limit is 2 steps");
        // The slow one takes the same steps, and each lets the fast one take another.
        for (at, expected) in [0, 1].into_iter().enumerate() {
            let ticket = stage.next(11, slow);
            assert_eq!(stage.record(ticket).step, expected);
            stage.release(11, slow, ticket);
            if let Some(Answer::Step(record)) = stage.answers.remove(&asked) {
                got.push(record.step);
                stage.release(10, fast, asked);
                asked = stage.next(10, fast);
            }
            assert!(got.len() > at + 1, "{policy:?}");
        }
        assert!(got.len() > 2 && got.is_sorted(), "{policy:?}: {got:?}");
    }
}

#[test]
fn a_disk_that_another_stream_had_filled_is_used_again() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Spill));
    let other = stage.ask(Peer(1), |ticket| Request::OpenWriter {
        ticket,
        stream: "other".into(),
        program: "solver".into(),
        rank: 0,
        size: 1,
        config: Box::new(config()),
        timeout: 0,
        gives_up: false,
    });
    let Answer::Writing { writer: other, .. } = stage.answer(other) else {
        panic!("it opens");
    };
    let ticket = stage.ask(Peer(11), |ticket| Request::OpenReader {
        ticket,
        stream: "other".into(),
        reader: Box::new(group("viewer", Policy::Spill)),
        timeout: 0,
        gives_up: false,
    });
    stage.answer(ticket);
    for step in 0..10 {
        stage.write(writer, step); // 8 of them fill the disk
    }
    let write_other = |stage: &mut Stage, step| {
        let begin = stage.ask(Peer(1), |ticket| Request::Begin {
            ticket,
            writer: other,
            step,
            wants: vec![Want {
                block_store: BLOCK_STORE,
                bytes: 128,
            }],
            timeout: 1000,
        });
        let Some(Answer::Begun { buffers }) = stage.answers.remove(&begin) else {
            return Some(begin);
        };
        let part = Part {
            step,
            layout: LayoutRef::New(Arc::new(line(&[(0, 16)]))),
            slots: vec![Slot::from_elem(buffers[0].buffer, 1)],
            places: BlockOffsets::Packed,
            attributes: Vec::new(),
            checksum: 0,
        };
        let ticket = stage.ask(Peer(1), |ticket| Request::Commit {
            ticket,
            writer: other,
            part,
            keep: false,
        });
        assert_eq!(stage.answer(ticket), Answer::Committed);
        None
    };
    for step in 0..3 {
        assert_eq!(write_other(&mut stage, step), None);
    }
    let waiting = write_other(&mut stage, 3).expect("the disk is full");
    assert!(stage.waits(waiting));
    // The first steps of the first stream lie in memory, the later ones on disk.
    for _ in 0..3 {
        let ticket = stage.next(10, reader);
        stage.record(ticket);
        stage.release(10, reader, ticket);
    }
    assert!(!stage.waits(waiting), "there is room on the disk");
}

#[test]
fn a_grant_after_an_abort_begins_nothing() {
    let mut stage = Stage::new(2 * 128);
    let wide = Reader {
        limits: Some(Limits {
            steps: 100,
            bytes: 1 << 20,
        }),
        ..group("viewer", Policy::Block)
    };
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, wide);
    stage.write(writer, 0);
    stage.write(writer, 1);
    let ticket = stage.begin(writer, 2, 128);
    assert!(stage.waits(ticket), "no memory");
    stage.say(Peer(0), Request::Abort { writer });
    assert_eq!(stage.fault(ticket), Fault::NotBegun { step: 2 });
    assert_eq!(stage.drain(10, reader), [0, 1]);
    assert!(stage.buffers.is_empty(), "nothing was granted to nobody");
    stage.write(writer, 2); // and it begins again as if nothing had been
}
