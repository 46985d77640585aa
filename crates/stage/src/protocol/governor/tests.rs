use super::*;

const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

fn id(stream: StreamId, number: u64) -> AskId {
    AskId { stream, number }
}

fn want(keeper: u32, bytes: u64) -> Want {
    Want {
        keeper: Peer(keeper.into()),
        bytes,
    }
}

fn ask(stream: StreamId, number: u64, wants: &[Want], has: &[Want]) -> Ask {
    Ask {
        ask: id(stream, number),
        wants: wants.to_vec(),
        has: has.to_vec(),
        keeps: Vec::new(),
        yields: false,
    }
}

fn governor() -> Governor {
    let mut governor = Governor::new();
    governor.keeper(Peer(1), 100, 1000, 50);
    governor.keeper(Peer(2), 100, 1000, 0);
    governor.stream(A, "a", 150);
    governor.stream(B, "b", u64::MAX);
    governor
}

fn granted(governor: &mut Governor) -> Vec<AskId> {
    let verdicts = governor.pump().into_iter();
    verdicts
        .filter_map(|verdict| match verdict {
            Verdict::Granted(ask) => Some(ask),
            _ => None,
        })
        .collect()
}

fn free(governor: &mut Governor, stream: StreamId, keeper: u32, bytes: u64) {
    governor.freed(BufferId { stream, number: 0 }, Peer(keeper.into()), bytes);
}

#[test]
fn grants_stay_within_the_keeper_and_the_stream() {
    let mut governor = governor();
    assert_eq!(
        governor.ask(ask(A, 0, &[want(1, 60), want(2, 60)], &[])),
        None
    );
    assert_eq!(granted(&mut governor), [id(A, 0)]);
    assert_eq!((governor.used_at(Peer(1)), governor.used_by(A)), (60, 120));
    // The stream's limit: 30 are left of 150.
    governor.ask(ask(A, 1, &[want(1, 31)], &[]));
    let Verdict::Wait(_, short) = &governor.pump()[0] else {
        panic!("it has to wait");
    };
    assert_eq!((short.missing, short.keeper, short.limit), (1, None, 150));
    // Another stream is not held up by that.
    governor.ask(ask(B, 0, &[want(1, 40)], &[]));
    assert_eq!(granted(&mut governor), [id(B, 0)]);
    free(&mut governor, A, 2, 60);
    let Verdict::Wait(_, short) = &governor.pump()[0] else {
        panic!("keeper 1 is full");
    };
    assert_eq!((short.missing, short.keeper), (31, Some(Peer(1))));
    free(&mut governor, A, 1, 60);
    assert_eq!(granted(&mut governor), [id(A, 1)]);
    assert!(!governor.waiting());
}

#[test]
fn a_large_ask_is_not_starved_by_small_ones() {
    let mut governor = governor();
    governor.ask(ask(B, 0, &[want(1, 50)], &[]));
    assert_eq!(granted(&mut governor), [id(B, 0)]);
    governor.ask(ask(A, 0, &[want(1, 100), want(2, 10)], &[]));
    governor.ask(ask(B, 1, &[want(1, 10)], &[]));
    governor.ask(ask(B, 2, &[want(2, 95)], &[]));
    assert_eq!(granted(&mut governor), [], "both keepers are spoken for");
    free(&mut governor, B, 1, 50);
    assert_eq!(granted(&mut governor), [id(A, 0)]);
    free(&mut governor, A, 1, 100);
    assert_eq!(granted(&mut governor), [id(B, 1)]);
    free(&mut governor, A, 2, 10);
    assert_eq!(granted(&mut governor), [id(B, 2)]);
}

#[test]
fn buffers_are_counted_as_bytes_are() {
    let mut governor = Governor::new();
    governor.keeper(Peer(1), 100, 3, 0);
    governor.stream(A, "a", u64::MAX);
    governor.stream(B, "b", u64::MAX);
    governor.ask(ask(A, 0, &[want(1, 1), want(1, 1)], &[]));
    governor.ask(ask(B, 1, &[want(1, 1), want(1, 1)], &[]));
    assert_eq!(granted(&mut governor), [id(A, 0)]);
    let Verdict::Wait(_, short) = &governor.pump()[0] else {
        panic!("it has to wait");
    };
    assert!(short.counts_buffers);
    assert_eq!((short.missing, short.used, short.limit), (1, 2, 3));
    free(&mut governor, A, 1, 1);
    assert!(governor.has_changed());
    assert_eq!(granted(&mut governor), [id(B, 1)]);
    let many = [want(1, 1); 4];
    assert!(matches!(
        governor.ask(ask(A, 2, &many, &[])),
        Some(Verdict::Refused(
            _,
            Fault::TooManyBuffers {
                buffers: 4,
                most: 3,
                ..
            }
        ))
    ));
}

#[test]
fn a_budget_of_everything_is_counted_too() {
    let mut governor = Governor::new();
    governor.keeper(Peer(1), u64::MAX, 1000, u64::MAX);
    assert_eq!(governor.memory(), MOST_BYTES);
    governor.stream(A, "a", u64::MAX);
    governor.stream(B, "b", u64::MAX);
    governor.ask(ask(A, 0, &[want(1, 10)], &[]));
    governor.ask(ask(B, 0, &[want(1, MOST_BYTES)], &[]));
    assert_eq!(granted(&mut governor), [id(A, 0)]);
    let Verdict::Wait(_, short) = &governor.pump()[0] else {
        panic!("10 bytes are missing");
    };
    assert_eq!(short.missing, 10);
    free(&mut governor, A, 1, 10);
    assert_eq!(granted(&mut governor), [id(B, 0)]);
}

/// What is granted is what is freed: sums that end at 2^64 would not be.
#[test]
fn what_64_bits_do_not_count_is_refused() {
    for (has, wants) in [
        (vec![], vec![want(1, u64::MAX), want(1, u64::MAX)]),
        (vec![], vec![want(1, u64::MAX), want(2, 1)]),
        (vec![want(2, u64::MAX)], vec![want(1, 1)]),
    ] {
        let mut governor = Governor::new();
        governor.keeper(Peer(1), u64::MAX, 9, 0);
        governor.keeper(Peer(2), u64::MAX, 9, 0);
        governor.stream(A, "a", u64::MAX);
        let refused = governor.ask(ask(A, 0, &wants, &has));
        assert!(
            matches!(
                refused,
                Some(Verdict::Refused(
                    _,
                    Fault::TooLarge {
                        bytes: u64::MAX,
                        ..
                    }
                ))
            ),
            "{refused:?}"
        );
        assert_eq!(granted(&mut governor), []);
        governor.stream_over(A);
    }
}

#[test]
fn half_written_steps_come_first() {
    let mut governor = governor();
    governor.ask(ask(A, 0, &[want(1, 60)], &[]));
    governor.ask(ask(B, 0, &[want(1, 60)], &[]));
    assert_eq!(granted(&mut governor), [id(A, 0)]);
    governor.ask(ask(A, 1, &[want(1, 40)], &[want(1, 60)]));
    assert_eq!(
        granted(&mut governor),
        [id(A, 1)],
        "B came before, but has nothing"
    );
}

#[test]
fn the_impossible_is_refused_at_once_and_by_name() {
    let mut governor = governor();
    let refusal = |verdict| match verdict {
        Some(Verdict::Refused(_, fault)) => fault,
        other => panic!("not refused: {other:?}"),
    };
    let large = refusal(governor.ask(ask(B, 0, &[want(1, 101)], &[])));
    assert_eq!(
        large.to_string(),
        "101 bytes for one step of the stream b, and for the last one where its writer keeps it, are more than 100, all that peer 1 may have: \
         write less per step, or give it more memory: memory.budget on its node, or --memory of a staging server"
    );
    let open = refusal(governor.ask(ask(B, 0, &[want(1, 60)], &[want(1, 60)])));
    assert!(matches!(
        open,
        Fault::TooLarge {
            bytes: 120,
            limit: 100,
            ..
        }
    ));
    let stream = refusal(governor.ask(ask(A, 0, &[want(1, 80), want(2, 80)], &[])));
    assert!(matches!(
        stream,
        Fault::TooLarge {
            bytes: 160,
            limit: 150,
            ..
        }
    ));
    let nobody = refusal(governor.ask(ask(B, 0, &[want(7, 1)], &[])));
    assert_eq!(nobody, Fault::NoKeeper { keeper: Peer(7) });
    let huge = refusal(governor.ask(ask(B, 0, &[want(1, u64::MAX), want(1, 2)], &[])));
    assert!(matches!(huge, Fault::TooLarge { .. }));
    assert!(!governor.waiting());
}

#[test]
fn a_stream_that_can_is_asked_to_make_room() {
    let mut governor = governor();
    governor.ask(ask(A, 0, &[want(1, 90)], &[]));
    governor.pump();
    governor.ask(Ask {
        yields: true,
        ..ask(A, 1, &[want(1, 30)], &[])
    });
    assert!(matches!(
        governor.pump()[..],
        [Verdict::Spill(
            _,
            Shortage {
                missing: 20,
                used: 90,
                limit: 100,
                ..
            }
        )]
    ));
    let buffer = |number| BufferId { stream: A, number };
    assert!(governor.take_disk(buffer(0), Peer(1), 50));
    assert!(
        !governor.take_disk(buffer(1), Peer(1), 1),
        "the disk has a budget too"
    );
    governor.free_disk(buffer(1));
    assert!(!governor.take_disk(buffer(1), Peer(1), 1), "it had none");
    governor.free_disk(buffer(0));
    governor.free_disk(buffer(0));
    assert!(governor.take_disk(buffer(1), Peer(1), 50));
    assert!(!governor.take_disk(buffer(2), Peer(2), 1));
}

#[test]
fn a_lost_keeper_takes_its_books_along() {
    let mut governor = governor();
    governor.ask(ask(A, 0, &[want(1, 70), want(2, 70)], &[]));
    governor.pump();
    governor.ask(ask(B, 0, &[want(1, 70)], &[]));
    governor.ask(ask(B, 1, &[want(2, 70)], &[]));
    assert_eq!(granted(&mut governor), []);
    assert_eq!(
        governor.keeper_lost(Peer(1)),
        [Verdict::Refused(
            id(B, 0),
            Fault::NoKeeper { keeper: Peer(1) }
        )]
    );
    assert_eq!((governor.used_by(A), governor.memory()), (70, 100));
    free(&mut governor, A, 1, 70); // too late: nothing happens
    free(&mut governor, A, 2, 70);
    assert_eq!(granted(&mut governor), [id(B, 1)]);
    governor.stream_over(A);
}

#[test]
fn other_asks_of_a_step_that_got_memory_are_continuing() {
    let mut governor = governor();
    governor.ask(ask(B, 0, &[want(1, 90)], &[]));
    assert_eq!(granted(&mut governor), [id(B, 0)]);
    governor.stream(StreamId(2), "c", u64::MAX);
    governor.ask(ask(A, 0, &[want(1, 50)], &[]));
    governor.ask(ask(StreamId(2), 0, &[want(1, 100)], &[]));
    governor.ask(ask(A, 1, &[want(1, 50)], &[]));
    governor.ask(ask(A, 2, &[want(1, 1)], &[]));
    assert_eq!(granted(&mut governor), []);
    free(&mut governor, B, 1, 90);
    let verdicts = governor.pump();
    let fits = [id(A, 0), id(A, 1)].map(Verdict::Granted);
    assert_eq!(
        verdicts[..2],
        fits,
        "the second part of the step, before a new step"
    );
    assert!(
        matches!(&verdicts[2], Verdict::Refused(ask, Fault::TooLarge { .. }) if *ask == id(A, 2)),
        "the third can never fit"
    );
}

#[test]
fn a_withdrawn_ask_holds_up_nobody() {
    let mut governor = governor();
    let c = StreamId(2);
    governor.stream(c, "c", u64::MAX);
    governor.ask(ask(B, 0, &[want(1, 60)], &[]));
    governor.ask(ask(c, 0, &[want(1, 60)], &[]));
    governor.ask(ask(A, 0, &[want(1, 30)], &[]));
    assert_eq!(granted(&mut governor), [id(B, 0)]);
    governor.withdraw(id(c, 0));
    assert_eq!(granted(&mut governor), [id(A, 0)]);
}
