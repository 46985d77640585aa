use super::*;

const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

fn id(stream: StreamId, number: u64) -> RequestId {
    RequestId {
        stream,
        rank: 0,
        number,
    }
}

fn want(block_store: u32, bytes: u64) -> Want {
    Want {
        block_store: Peer(block_store.into()),
        bytes,
    }
}

fn request(stream: StreamId, number: u64, wants: &[Want], has: &[Want]) -> MemoryRequest {
    MemoryRequest {
        id: id(stream, number),
        wants: wants.to_vec(),
        has: totals(has.iter().copied()),
        keeps: Totals::new(),
        yields: false,
    }
}

fn admission() -> Admission {
    let mut admission = Admission::new();
    admission.block_store(Peer(1), 100, 1000, 50);
    admission.block_store(Peer(2), 100, 1000, 0);
    admission.stream(A, "a", 150);
    admission.stream(B, "b", u64::MAX);
    admission
}

fn granted(admission: &mut Admission) -> Vec<RequestId> {
    let decisions = admission.pump().into_iter();
    decisions
        .filter_map(|decision| match decision {
            Decision::Granted(request) => Some(request),
            _ => None,
        })
        .collect()
}

fn free(admission: &mut Admission, stream: StreamId, block_store: u32, bytes: u64) {
    admission.freed(
        BufferId { stream, number: 0 },
        Peer(block_store.into()),
        bytes,
    );
}

#[test]
fn grants_stay_within_the_block_store_and_the_stream() {
    let mut admission = admission();
    assert_eq!(
        admission.request(request(A, 0, &[want(1, 60), want(2, 60)], &[])),
        None
    );
    assert_eq!(granted(&mut admission), [id(A, 0)]);
    assert_eq!(
        (admission.used_at(Peer(1)), admission.used_by(A)),
        (60, 120)
    );
    // The stream's limit: 30 are left of 150.
    admission.request(request(A, 1, &[want(1, 31)], &[]));
    let Decision::Wait(_, short) = &admission.pump()[0] else {
        panic!("it has to wait");
    };
    assert_eq!(
        (short.missing, short.block_store, short.limit),
        (1, None, 150)
    );
    // That does not delay another stream.
    admission.request(request(B, 0, &[want(1, 40)], &[]));
    assert_eq!(granted(&mut admission), [id(B, 0)]);
    free(&mut admission, A, 2, 60);
    let Decision::Wait(_, short) = &admission.pump()[0] else {
        panic!("block store 1 is full");
    };
    assert_eq!((short.missing, short.block_store), (31, Some(Peer(1))));
    free(&mut admission, A, 1, 60);
    assert_eq!(granted(&mut admission), [id(A, 1)]);
    assert!(!admission.waiting());
}

#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    let mut admission = admission();
    admission.request(request(B, 0, &[want(1, 50)], &[]));
    assert_eq!(granted(&mut admission), [id(B, 0)]);
    admission.request(request(A, 0, &[want(1, 100), want(2, 10)], &[]));
    admission.request(request(B, 1, &[want(1, 10)], &[]));
    admission.request(request(B, 2, &[want(2, 95)], &[]));
    assert_eq!(
        granted(&mut admission),
        [],
        "both block stores are spoken for"
    );
    free(&mut admission, B, 1, 50);
    assert_eq!(granted(&mut admission), [id(A, 0)]);
    free(&mut admission, A, 1, 100);
    assert_eq!(granted(&mut admission), [id(B, 1)]);
    free(&mut admission, A, 2, 10);
    assert_eq!(granted(&mut admission), [id(B, 2)]);
}

#[test]
fn buffers_are_counted_as_bytes_are() {
    let mut admission = Admission::new();
    admission.block_store(Peer(1), 100, 3, 0);
    admission.stream(A, "a", u64::MAX);
    admission.stream(B, "b", u64::MAX);
    admission.request(request(A, 0, &[want(1, 1), want(1, 1)], &[]));
    admission.request(request(B, 1, &[want(1, 1), want(1, 1)], &[]));
    assert_eq!(granted(&mut admission), [id(A, 0)]);
    let Decision::Wait(_, short) = &admission.pump()[0] else {
        panic!("it has to wait");
    };
    assert!(short.counts_buffers);
    assert_eq!((short.missing, short.used, short.limit), (1, 2, 3));
    free(&mut admission, A, 1, 1);
    assert!(admission.has_changed());
    assert_eq!(granted(&mut admission), [id(B, 1)]);
    let many = [want(1, 1); 4];
    assert!(matches!(
        admission.request(request(A, 2, &many, &[])),
        Some(Decision::Refused(
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
    let mut admission = Admission::new();
    admission.block_store(Peer(1), u64::MAX, 1000, u64::MAX);
    assert_eq!(admission.memory(), MOST_BYTES);
    admission.stream(A, "a", u64::MAX);
    admission.stream(B, "b", u64::MAX);
    admission.request(request(A, 0, &[want(1, 10)], &[]));
    admission.request(request(B, 0, &[want(1, MOST_BYTES)], &[]));
    assert_eq!(granted(&mut admission), [id(A, 0)]);
    let Decision::Wait(_, short) = &admission.pump()[0] else {
        panic!("10 bytes are missing");
    };
    assert_eq!(short.missing, 10);
    free(&mut admission, A, 1, 10);
    assert_eq!(granted(&mut admission), [id(B, 0)]);
}

/// Exactly the granted bytes are freed; sums that saturate at 64 bits would break that.
#[test]
fn what_64_bits_do_not_count_is_refused() {
    for (has, wants) in [
        (vec![], vec![want(1, u64::MAX), want(1, u64::MAX)]),
        (vec![], vec![want(1, u64::MAX), want(2, 1)]),
        (vec![want(2, u64::MAX)], vec![want(1, 1)]),
    ] {
        let mut admission = Admission::new();
        admission.block_store(Peer(1), u64::MAX, 9, 0);
        admission.block_store(Peer(2), u64::MAX, 9, 0);
        admission.stream(A, "a", u64::MAX);
        let refused = admission.request(request(A, 0, &wants, &has));
        assert!(
            matches!(
                refused,
                Some(Decision::Refused(
                    _,
                    Fault::TooLarge {
                        bytes: u64::MAX,
                        ..
                    }
                ))
            ),
            "{refused:?}"
        );
        assert_eq!(granted(&mut admission), []);
        admission.stream_over(A);
    }
}

#[test]
fn half_written_steps_come_first() {
    let mut admission = admission();
    admission.request(request(A, 0, &[want(1, 60)], &[]));
    admission.request(request(B, 0, &[want(1, 60)], &[]));
    assert_eq!(granted(&mut admission), [id(A, 0)]);
    admission.request(request(A, 1, &[want(1, 40)], &[want(1, 60)]));
    assert_eq!(
        granted(&mut admission),
        [id(A, 1)],
        "B came before, but has nothing"
    );
}

#[test]
fn the_impossible_is_refused_at_once_and_by_name() {
    let mut admission = admission();
    let refusal = |decision| match decision {
        Some(Decision::Refused(_, fault)) => fault,
        other => panic!("not refused: {other:?}"),
    };
    let large = refusal(admission.request(request(B, 0, &[want(1, 101)], &[])));
    assert_eq!(
        large.to_string(),
        "one step of the stream b, with the previous one where its writer keeps it, needs 101 bytes, but peer 1 may use only 100: \
         write less per step, or give it more memory: memory.budget on its node, or --memory of a staging server"
    );
    let open = refusal(admission.request(request(B, 0, &[want(1, 60)], &[want(1, 60)])));
    assert!(matches!(
        open,
        Fault::TooLarge {
            bytes: 120,
            limit: 100,
            ..
        }
    ));
    let stream = refusal(admission.request(request(A, 0, &[want(1, 80), want(2, 80)], &[])));
    assert!(matches!(
        stream,
        Fault::TooLarge {
            bytes: 160,
            limit: 150,
            ..
        }
    ));
    let nobody = refusal(admission.request(request(B, 0, &[want(7, 1)], &[])));
    assert_eq!(
        nobody,
        Fault::NoBlockStore {
            block_store: Peer(7).into()
        }
    );
    let huge = refusal(admission.request(request(B, 0, &[want(1, u64::MAX), want(1, 2)], &[])));
    assert!(matches!(huge, Fault::TooLarge { .. }));
    assert!(!admission.waiting());
}

#[test]
fn a_stream_that_can_is_asked_to_make_room() {
    let mut admission = admission();
    admission.request(request(A, 0, &[want(1, 90)], &[]));
    admission.pump();
    admission.request(MemoryRequest {
        yields: true,
        ..request(A, 1, &[want(1, 30)], &[])
    });
    assert!(matches!(
        admission.pump()[..],
        [Decision::Spill(
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
    assert!(admission.take_disk(buffer(0), Peer(1), 50));
    assert!(
        !admission.take_disk(buffer(1), Peer(1), 1),
        "the disk has a budget too"
    );
    admission.free_disk(buffer(1));
    assert!(!admission.take_disk(buffer(1), Peer(1), 1), "it had none");
    admission.free_disk(buffer(0));
    admission.free_disk(buffer(0));
    assert!(admission.take_disk(buffer(1), Peer(1), 50));
    assert!(!admission.take_disk(buffer(2), Peer(2), 1));
}

#[test]
fn a_lost_block_store_takes_its_books_along() {
    let mut admission = admission();
    admission.request(request(A, 0, &[want(1, 70), want(2, 70)], &[]));
    admission.pump();
    admission.request(request(B, 0, &[want(1, 70)], &[]));
    admission.request(request(B, 1, &[want(2, 70)], &[]));
    assert_eq!(granted(&mut admission), []);
    assert_eq!(
        admission.block_store_lost(Peer(1)),
        [Decision::Refused(
            id(B, 0),
            Fault::NoBlockStore {
                block_store: Peer(1).into()
            }
        )]
    );
    assert_eq!((admission.used_by(A), admission.memory()), (70, 100));
    free(&mut admission, A, 1, 70); // too late: nothing happens
    free(&mut admission, A, 2, 70);
    assert_eq!(granted(&mut admission), [id(B, 1)]);
    admission.stream_over(A);
}

#[test]
fn other_requests_of_a_step_that_got_memory_are_continuing() {
    let mut admission = admission();
    admission.request(request(B, 0, &[want(1, 90)], &[]));
    assert_eq!(granted(&mut admission), [id(B, 0)]);
    admission.stream(StreamId(2), "c", u64::MAX);
    admission.request(request(A, 0, &[want(1, 50)], &[]));
    admission.request(request(StreamId(2), 0, &[want(1, 100)], &[]));
    admission.request(request(A, 1, &[want(1, 50)], &[]));
    admission.request(request(A, 2, &[want(1, 1)], &[]));
    assert_eq!(granted(&mut admission), []);
    free(&mut admission, B, 1, 90);
    let decisions = admission.pump();
    let fits = [id(A, 0), id(A, 1)].map(Decision::Granted);
    assert_eq!(
        decisions[..2],
        fits,
        "the second part of the step, before a new step"
    );
    assert!(
        matches!(&decisions[2], Decision::Refused(request, Fault::TooLarge { .. }) if *request == id(A, 2)),
        "the third can never fit"
    );
}

#[test]
fn a_withdrawn_request_holds_up_nobody() {
    let mut admission = admission();
    let c = StreamId(2);
    admission.stream(c, "c", u64::MAX);
    admission.request(request(B, 0, &[want(1, 60)], &[]));
    admission.request(request(c, 0, &[want(1, 60)], &[]));
    admission.request(request(A, 0, &[want(1, 30)], &[]));
    assert_eq!(granted(&mut admission), [id(B, 0)]);
    admission.withdraw(id(c, 0));
    assert_eq!(granted(&mut admission), [id(A, 0)]);
}
