//! Layouts, parts that fit together, and the order of what a rank says.

use super::*;
use samite_stage::protocol::Expected;

#[test]
fn layouts_travel_once() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 0);
    let hold = stage.next(10, reader);
    let Layouts::New { hash, layouts } = stage.record(hold).layouts else {
        panic!("the first is whole");
    };
    assert_eq!(*layouts[0], line(&[(0, 16)]));
    let ticket = stage.begin(writer, 1, 128);
    let buffers = stage.buffers(ticket);
    let slots = vec![Slot::from_elem(buffers[0].buffer, 1)];
    let ticket = stage.commit_slots(
        writer,
        1,
        LayoutRef::Same(layouts[0].hash()),
        slots.clone(),
        7,
    );
    assert_eq!(stage.answer(ticket), Answer::Committed);
    let second = stage.next(10, reader);
    let record = stage.record(second);
    assert_eq!(record.layouts, Layouts::Same(hash));
    assert_eq!(
        record.parts[0].attributes[..],
        [("time".to_owned(), Attribute::Real(1.0))]
    );
    stage.release(10, reader, hold);
    let ticket = stage.begin(writer, 2, 128);
    stage.buffers(ticket);
    let ticket = stage.commit_slots(
        writer,
        2,
        LayoutRef::Same(samite_stage::protocol::LayoutHash(1)),
        slots,
        7,
    );
    assert_eq!(stage.fault(ticket), Fault::UnknownLayout { rank: 0 });
}

/// Two ranks begin step 0 with a buffer each; rank 1 commits `layout` after rank 0 has committed
/// the first half.
fn two_ranks(layout: Layout) -> Result<(), Box<Fault>> {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let tickets = [stage.begin(zero, 0, 128), stage.begin(one, 0, 256)];
    let [first, second] = tickets.map(|ticket| stage.buffers(ticket));
    let ticket = stage.commit(zero, 0, line(&[(0, 8)]), &first);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    let ticket = stage.commit(one, 0, layout, &second);
    let outcome = match stage.answer(ticket) {
        Answer::Committed => Ok(()),
        Answer::Failed(fault) => Err(Box::new(fault)),
        other => panic!("{other:?}"),
    };
    if outcome.is_err() {
        // The rank may do it right now.
        let ticket = stage.commit(one, 0, line(&[(8, 16)]), &second);
        assert_eq!(stage.answer(ticket), Answer::Committed);
    }
    assert_eq!(stage.coordinator.figures()[0].committed, 1);
    outcome
}

#[test]
fn parts_that_do_not_fit_together_are_refused_by_name() {
    assert_eq!(two_ranks(line(&[(8, 16)])), Ok(()));
    let overlap = two_ranks(line(&[(12, 16), (7, 9)])).unwrap_err();
    assert_eq!(
        overlap.to_string(),
        "blocks of u overlap: [0..8] of rank 0 and [7..9] of rank 1"
    );
    let mut dtype = line(&[(8, 16)]);
    dtype.variables[0].dtype = Dtype::I64;
    assert_eq!(
        two_ranks(dtype).unwrap_err().to_string(),
        "u is f64 at rank 0 and i64 at rank 1"
    );
    let mut shape = line(&[(8, 16)]);
    shape.variables[0].shape[0] = 17;
    assert_eq!(
        two_ranks(shape).unwrap_err().to_string(),
        "u has the shape [16] at rank 0 and [17] at rank 1"
    );
    assert!(matches!(
        *two_ranks(line(&[(8, 17)])).unwrap_err(),
        Fault::OutsideArray { rank: 1, .. }
    ));
    let mut slot = line(&[(8, 16)]);
    slot.variables[0].blocks[0].slot = u32::MAX;
    assert!(matches!(
        *two_ranks(slot).unwrap_err(),
        Fault::BadPlace {
            rank: 1,
            block: 0,
            ..
        }
    ));
    let mut large = line(&[(8, 16)]);
    large.variables[0].name = "v".into();
    large.variables[0].shape[0] = 99;
    large.variables[0].blocks[0].region = Region::new(&[0], &[33]).unwrap();
    assert!(
        matches!(*two_ranks(large).unwrap_err(), Fault::BadPlace { .. }),
        "33 numbers in 256 bytes"
    );
}

#[test]
fn the_order_of_a_rank_is_checked() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let ticket = stage.begin(writer, 1, 128);
    assert_eq!(stage.fault(ticket), Fault::WrongStep { asked: 1, next: 0 });
    let ticket = stage.commit(writer, 0, line(&[]), &[]);
    assert_eq!(stage.fault(ticket), Fault::NotBegun { step: 0 });
    let ticket = stage.ask(Peer(0), |ticket| Request::Reserve {
        ticket,
        writer,
        wants: vec![],
        timeout: 0,
    });
    assert_eq!(stage.fault(ticket), Fault::NotBegun { step: 0 });
    let ticket = stage.begin(writer, 0, 128);
    let buffers = stage.buffers(ticket);
    let twice = vec![Slot::from_elem(buffers[0].buffer, 2)];
    let ticket = stage.commit_slots(writer, 0, LayoutRef::New(Arc::new(line(&[]))), twice, 7);
    assert_eq!(stage.fault(ticket), Fault::ForeignBuffer { rank: 0 });
    stage.say(Peer(0), Request::Abort { writer });
    assert!(stage.buffers.is_empty());
    let ticket = stage.commit(writer, 0, line(&[(0, 16)]), &buffers);
    assert_eq!(stage.fault(ticket), Fault::NotBegun { step: 0 });
    let stranger = stage.ask(Peer(77), |ticket| Request::Begin {
        ticket,
        writer,
        step: 0,
        wants: vec![],
        timeout: 0,
    });
    assert_eq!(stage.fault(stranger), Fault::NotOpen);
}

#[test]
fn opening_is_checked() {
    let mut stage = Stage::new(1 << 20);
    let ticket = stage.open_reader(10, group("viewer", Policy::Block));
    assert!(matches!(stage.fault(ticket), Fault::NoStream { .. }));
    stage.writer(0, 2, &config());
    let ticket = stage.open_writer(5, "other", 0, 2, &config());
    assert!(matches!(stage.fault(ticket), Fault::TwoWriters { .. }));
    let ticket = stage.open_writer(5, "solver", 0, 2, &config());
    assert_eq!(
        stage.fault(ticket).to_string(),
        "solver.0 is there already: give each process a rank of its own"
    );
    let ticket = stage.open_writer(5, "solver", 1, 3, &config());
    assert!(matches!(
        stage.fault(ticket),
        Fault::SizeDiffers {
            size: 3,
            there: 2,
            ..
        }
    ));
    let ticket = stage.open_writer(5, "solver", 2, 2, &config());
    assert!(matches!(
        stage.fault(ticket),
        Fault::RankBeyond { rank: 2, .. }
    ));
    stage.reader(10, group("viewer", Policy::Block));
    let ticket = stage.open_reader(11, group("viewer", Policy::Block));
    assert!(matches!(
        stage.fault(ticket),
        Fault::RankTaken { peer, .. } if peer == Peer(10)
    ));
    let ticket = stage.open_reader(
        11,
        Reader {
            size: 2,
            rank: 1,
            ..group("viewer", Policy::Block)
        },
    );
    assert!(matches!(stage.fault(ticket), Fault::SizeDiffers { .. }));
    let ticket = stage.open_reader(
        11,
        Reader {
            rank: 1,
            ..group("third", Policy::Block)
        },
    );
    assert!(matches!(stage.fault(ticket), Fault::RankBeyond { .. }));
    let ticket = stage.open_reader(11, group("third", Policy::Every(0)));
    assert!(matches!(stage.fault(ticket), Fault::ZeroLimit { .. }));
    let huge = Reader {
        size: u32::MAX,
        ..group("third", Policy::Block)
    };
    let ticket = stage.open_reader(11, huge);
    assert!(matches!(stage.fault(ticket), Fault::TooManyRanks { .. }));
}

/// The limits that reader groups inherit are the writer's own, and it is told.
#[test]
fn a_stream_with_limits_of_zero_is_refused() {
    let limits = Some(Limits { steps: 0, bytes: 1 });
    let expected = |policy, limits| Expected {
        group: "viewer".into(),
        policy,
        limits,
    };
    let of = |expected| StreamConfig {
        expected: vec![expected],
        ..config()
    };
    let own = StreamConfig { limits, ..config() };
    let group = "the expected reader group viewer of field";
    for (config, whose) in [
        (own, "the stream field"),
        (of(expected(Policy::Block, limits)), group),
        (of(expected(Policy::Every(0), None)), group),
    ] {
        let mut stage = Stage::new(1024);
        let ticket = stage.open_writer(0, "solver", 0, 1, &config);
        let of = whose.to_owned();
        assert_eq!(stage.fault(ticket), Fault::ZeroLimit { of });
    }
}
