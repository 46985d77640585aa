//! Subscriptions: who is told of what, in which order, and that nobody waits for them.

use super::*;
use samite_stage::protocol::{Interest, News, WatchId};

fn of(variable: &str, region: Option<(u64, u64)>) -> Interest {
    Interest {
        variable: variable.into(),
        region: region.map(|(lower, upper)| Region::new(&[lower], &[upper]).unwrap()),
    }
}

impl Stage {
    fn open_watch(&mut self, peer: u32, interest: Interest, start: Start, most: u32) -> Ticket {
        self.ask(Peer(peer.into()), |ticket| Request::OpenWatch {
            ticket,
            stream: "field".into(),
            interest: Box::new(interest),
            start,
            most,
            timeout: 0,
        })
    }

    fn watch(&mut self, peer: u32, interest: Interest, start: Start, most: u32) -> WatchId {
        let ticket = self.open_watch(peer, interest, start, most);
        match self.answer(ticket) {
            Answer::Watching { watch, .. } => watch,
            other => panic!("{other:?}"),
        }
    }

    fn news(&mut self, peer: u32, watch: WatchId) -> Ticket {
        self.ask(Peer(peer.into()), |ticket| Request::Watch {
            ticket,
            watch,
            timeout: 1000,
        })
    }

    /// A whole step of a single rank with these blocks of 16 numbers.
    fn write_blocks(&mut self, writer: WriterId, step: Step, blocks: &[(u64, u64)]) {
        let ticket = self.begin(writer, step, 256);
        let buffers = self.buffers(ticket);
        let ticket = self.commit(writer, step, line(blocks), &buffers);
        assert_eq!(self.answer(ticket), Answer::Committed);
    }

    /// What it is told at once, shortly: `w3 2..5` for written, `m0-2` for missed.
    fn told(&mut self, peer: u32, watch: WatchId) -> String {
        let ticket = self.news(peer, watch);
        match self.answer(ticket) {
            Answer::News(news) => match *news {
                News::Written(w) => {
                    let (lower, upper) = (w.region.lower()[0], w.region.upper()[0]);
                    format!("w{} {lower}..{upper} {}", w.step, w.elements)
                }
                News::Missed { first, last } => format!("m{first}-{last}"),
            },
            Answer::End(why) => format!("{why:?}"),
            Answer::Failed(fault) => fault.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

fn unread() -> StreamConfig {
    StreamConfig {
        unread: Unread::Discard,
        ..config()
    }
}

#[test]
fn a_box_is_told_when_it_is_written_and_only_then() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &unread());
    let watch = stage.watch(10, of("u", Some((4, 8))), Start::Earliest, 9);
    let all = stage.watch(10, of("u", None), Start::Earliest, 9);
    let other = stage.watch(10, of("v", None), Start::Earliest, 9);
    let ticket = stage.news(10, watch);
    stage.write_blocks(writer, 0, &[(0, 4), (8, 16)]);
    assert!(stage.waits(ticket), "its box was not written");
    stage.write_blocks(writer, 1, &[(0, 5), (7, 12)]);
    let Answer::News(news) = stage.answer(ticket) else {
        panic!("no news");
    };
    let News::Written(written) = *news else {
        panic!("{news:?}");
    };
    assert_eq!((written.step, written.elements), (1, 2));
    assert_eq!(written.region, Region::new(&[4], &[8]).unwrap());
    assert_eq!((written.dtype, &written.shape[..]), (Dtype::F64, &[16][..]));
    assert_eq!(stage.told(10, all), "w0 0..16 12");
    assert_eq!(stage.told(10, all), "w1 0..12 10");
    let ticket = stage.news(10, other);
    stage.close(writer);
    assert_eq!(stage.answer(ticket), Answer::End(EndOfStream::Closed));
    assert_eq!(stage.told(10, watch), "Closed");
    assert_eq!(stage.told(10, watch), "Closed", "as often as it asks");
}

#[test]
fn what_does_not_fit_is_missed_by_name_and_holds_nobody_up() {
    let mut stage = Stage::new(256);
    let writer = stage.writer(0, 1, &unread());
    let watch = stage.watch(10, of("u", None), Start::Earliest, 3);
    for step in 0..50 {
        stage.write(writer, step);
    }
    assert!(stage.buffers.is_empty(), "a subscriber holds nothing");
    for told in ["m0-46", "w47 0..16 16", "w48 0..16 16", "w49 0..16 16"] {
        assert_eq!(stage.told(10, watch), told);
    }
    let ticket = stage.news(10, watch);
    assert!(stage.waits(ticket));
}

#[test]
fn a_late_one_is_told_what_is_there_and_what_is_gone() {
    let mut stage = Stage::new(1 << 20);
    let keeping = StreamConfig {
        retain: Retain { steps: 2, bytes: 0 },
        ..unread()
    };
    let writer = stage.writer(0, 1, &keeping);
    for step in 0..6 {
        stage.write(writer, step);
    }
    let watch = stage.watch(10, of("u", None), Start::Step(2), 9);
    for told in ["m2-3", "w4 0..16 16", "w5 0..16 16"] {
        assert_eq!(stage.told(10, watch), told);
    }
    let earliest = stage.watch(10, of("u", None), Start::Earliest, 9);
    assert_eq!(stage.told(10, earliest), "w4 0..16 16");
    let latest = stage.watch(10, of("u", None), Start::Latest, 9);
    assert_eq!(stage.told(10, latest), "w5 0..16 16");
    let future = stage.watch(10, of("u", None), Start::Step(7), 9);
    stage.write(writer, 6);
    stage.write(writer, 7);
    assert_eq!(stage.told(10, future), "w7 0..16 16");
}

#[test]
fn a_box_that_does_not_fit_is_an_error_in_its_place() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &unread());
    let outside = stage.watch(10, of("u", Some((8, 17))), Start::Earliest, 9);
    let square = Interest {
        variable: "u".into(),
        region: Some(Region::new(&[0, 0], &[1, 1]).unwrap()),
    };
    let square = stage.watch(10, square, Start::Earliest, 9);
    let ticket = stage.open_watch(10, of("u", Some((3, 3))), Start::Earliest, 9);
    assert!(matches!(stage.fault(ticket), Fault::EmptyBox { .. }));
    stage.write(writer, 0);
    assert_eq!(
        stage.told(10, outside),
        "u [8..17] is outside the array of step 0, whose shape is [16]: watch a box inside it"
    );
    let ticket = stage.news(10, square);
    assert!(matches!(
        stage.fault(ticket),
        Fault::NoSuchBox { step: 0, .. }
    ));
    // The array grows: from then on the box is inside.
    let mut layout = line(&[(0, 20)]);
    layout.variables[0].shape[0] = 20;
    let ticket = stage.begin(writer, 1, 256);
    let buffers = stage.buffers(ticket);
    stage.commit(writer, 1, layout, &buffers);
    assert_eq!(stage.told(10, outside), "w1 8..17 9");
}

#[test]
fn a_deadline_names_whom_the_step_waits_for() {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let watch = stage.watch(10, of("u", None), Start::Earliest, 9);
    let ticket = stage.news(10, watch);
    let tickets = [stage.begin(zero, 0, 128), stage.begin(one, 0, 128)];
    let [first, second] = tickets.map(|ticket| stage.buffers(ticket));
    stage.commit(zero, 0, line(&[(0, 8)]), &first);
    stage.pass(999);
    assert!(stage.waits(ticket));
    stage.pass(1);
    assert_eq!(
        stage.fault(ticket).to_string(),
        "nothing was written to u of the stream field in time; 0 steps are committed, and the next one is waiting for \
         solver.1 to commit step 0, which it has begun"
    );
    let ticket = stage.news(10, watch);
    stage.commit(one, 0, line(&[(8, 16)]), &second);
    assert!(matches!(stage.answer(ticket), Answer::News(_)));
    let ticket = stage.news(10, watch);
    stage.feed(Event::Lost(Peer(1)));
    let figures = stage.coordinator.figures();
    let waits = &figures[0].waits[0];
    assert_eq!(
        (waits.who.as_str(), waits.peer),
        ("the subscriber to u", Peer(10))
    );
    assert!(
        waits.whom.starts_with("solver.0 to commit step 1"),
        "{}",
        waits.whom
    );
    stage.pass(500);
    assert_eq!(stage.answer(ticket), Answer::End(failed(1)));
}

#[test]
fn a_stream_that_is_over_is_told_to_its_end_and_leaves_its_name_free() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &unread());
    let watch = stage.watch(10, of("u", None), Start::Earliest, 9);
    let stranger = stage.news(11, watch);
    assert_eq!(stage.fault(stranger), Fault::NotOpen);
    stage.write(writer, 0);
    stage.close(writer);
    assert_eq!(stage.coordinator.figures(), [], "the stream is over");
    let again = stage.writer(0, 1, &unread());
    stage.write(again, 0);
    for told in ["w0 0..16 16", "Closed"] {
        assert_eq!(stage.told(10, watch), told);
    }
    assert_eq!(stage.coordinator.subscriptions(), 1);
    stage.say(Peer(11), Request::CloseWatch { watch });
    assert_eq!(
        stage.coordinator.subscriptions(),
        1,
        "only its own process ends it"
    );
    stage.say(Peer(10), Request::CloseWatch { watch });
    assert_eq!(stage.coordinator.subscriptions(), 0);
}

#[test]
fn the_state_of_a_dead_subscriber_is_gone() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &unread());
    let watch = stage.watch(10, of("u", None), Start::Earliest, 9);
    stage.watch(11, of("u", None), Start::Earliest, 9);
    stage.news(10, watch);
    stage.feed(Event::Lost(Peer(10)));
    assert_eq!(stage.coordinator.subscriptions(), 1);
    stage.write(writer, 0);
    stage.close(writer);
    stage.feed(Event::Lost(Peer(11)));
    assert_eq!(stage.coordinator.subscriptions(), 0);
}

#[test]
fn a_reader_of_a_box_holds_the_steps_that_touch_it_and_no_others() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    stage.write_blocks(writer, 0, &[(0, 4)]);
    let only = Reader {
        only: Some(of("u", Some((4, 8)))),
        ..group("viewer", Policy::Block)
    };
    let reader = stage.reader(10, only);
    assert!(stage.buffers.is_empty(), "step 0 has nothing for it");
    for step in 1..9 {
        let blocks: &[(u64, u64)] = match step % 4 {
            0 => &[(6, 7)],
            _ => &[(0, 4)],
        };
        stage.write_blocks(writer, step, blocks);
    }
    assert_eq!(stage.buffers.len(), 2, "steps 4 and 8");
    let ticket = stage.begin(writer, 9, 128);
    assert!(stage.waits(ticket), "its queue has two steps");
    assert_eq!(stage.drain(10, reader), [4, 8]);
    assert!(!stage.waits(ticket));
}
