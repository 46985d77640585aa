//! How streams end: ranks that close, give up or fail, and what readers learn.

use super::*;

/// Rank 0 was told that step 0 is there "even if it dies": the stream cannot end well without it,
/// whoever closes last.
#[test]
fn a_rank_cannot_close_before_another_one() {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write_half(zero, (0, 8));
    let closes = |stage: &mut Stage| {
        let ticket = stage.ask(Peer(1), |ticket| Request::CloseWriter {
            ticket,
            writer: one,
        });
        stage.fault(ticket)
    };
    let (stream, rank, step, other) = ("field".to_owned(), 1, 0, 0);
    let early = Fault::ClosesEarly {
        stream,
        program: "solver".to_owned(),
        rank,
        step,
        other,
    };
    assert_eq!(closes(&mut stage), early);
    stage.close(zero);
    assert_eq!(closes(&mut stage), early);
    let next = stage.next(10, reader);
    assert!(stage.waits(next), "it may still write it");
    stage.say(Peer(1), Request::LeaveWriter { writer: one });
    stage.pass(500);
    let how = Failure::GaveUp;
    assert_eq!(
        stage.answer(next),
        Answer::End(EndOfStream::WriterFailed { rank, how })
    );
    assert!(stage.buffers.is_empty(), "half a step is no step");
}

#[test]
fn the_end_comes_after_the_last_step() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 0);
    stage.write(writer, 1);
    stage.close(writer);
    assert_eq!(stage.drain(10, reader), [0, 1]);
    let end = stage.next(10, reader);
    assert_eq!(stage.answer(end), Answer::End(EndOfStream::Closed));
    let beyond = stage.at(10, reader, 2);
    assert_eq!(stage.answer(beyond), Answer::End(EndOfStream::Closed));
    stage.say(Peer(10), Request::CloseReader { reader });
    assert!(stage.coordinator.figures().is_empty() && stage.buffers.is_empty());
}

/// A writer that goes away without a word is no writer that has closed.
#[test]
fn a_writer_that_gives_up_ends_its_stream_as_failed() {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let reader = stage.reader(10, group("viewer", Policy::Block));
    for (writer, block) in [(zero, (0, 8)), (one, (8, 16))] {
        stage.write_half(writer, block);
    }
    let ticket = stage.begin(zero, 1, 64);
    stage.say(Peer(0), Request::LeaveWriter { writer: zero });
    assert!(matches!(stage.answer(ticket), Answer::Begun { .. }));
    assert_eq!(stage.buffers.len(), 2, "of step 0");
    stage.close(one);
    assert_eq!(stage.drain(10, reader), [0]);
    let next = stage.next(10, reader);
    assert!(stage.waits(next), "its lease runs");
    // The same process may try again: it goes on where it was.
    let ticket = stage.open_writer(0, "solver", 0, 2, &config());
    let Answer::Writing { next: 1, .. } = stage.answer(ticket) else {
        panic!("another step");
    };
    stage.say(Peer(0), Request::LeaveWriter { writer: zero });
    stage.pass(500);
    let how = Failure::GaveUp;
    assert_eq!(
        stage.answer(next),
        Answer::End(EndOfStream::WriterFailed { rank: 0, how })
    );
    let ticket = stage.ask(Peer(0), |ticket| Request::CloseWriter {
        ticket,
        writer: zero,
    });
    assert_eq!(stage.fault(ticket), Fault::NotOpen);
}

/// Who closes a stream that has failed is told so.
#[test]
fn a_stream_that_has_failed_cannot_be_closed() {
    let mut stage = Stage::new(1 << 20);
    let one = stage.writer(1, 2, &config());
    let _reader = stage.reader(10, group("viewer", Policy::Block));
    stage.pass(500);
    let ticket = stage.ask(Peer(1), |ticket| Request::CloseWriter {
        ticket,
        writer: one,
    });
    let (rank, how) = (0, Failure::NeverCame);
    let fault = Fault::WriterFailed {
        stream: "field".to_owned(),
        program: Some("solver".to_owned()),
        rank,
        how,
    };
    assert_eq!(
        fault.to_string(),
        "the stream field ended before it was complete: solver.0 never came"
    );
    assert_eq!(stage.fault(ticket), fault);
}

#[test]
fn an_unread_stream_lingers_and_gives_its_name_away() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    stage.write(writer, 0);
    stage.close(writer);
    stage.pass(99);
    assert_eq!(stage.buffers.len(), 1);
    stage.pass(1);
    assert!(stage.buffers.is_empty() && stage.coordinator.figures().is_empty());
    let writer = stage.writer(0, 1, &config());
    stage.write(writer, 0);
    stage.close(writer);
    let writer = stage.writer(1, 2, &config());
    assert_eq!(writer.stream.0, 2, "another stream has the name");
    assert!(stage.buffers.is_empty());
}

/// A rank that cannot be frees nothing of the stream whose name it says.
#[test]
fn who_is_refused_gives_no_name_away() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    stage.write(writer, 0);
    stage.close(writer);
    let ticket = stage.open_writer(7, "other", 2, 2, &config());
    assert!(matches!(stage.fault(ticket), Fault::RankBeyond { .. }));
    assert_eq!(stage.buffers.len(), 1, "the unread step");
    let reader = stage.reader(10, group("viewer", Policy::Block));
    assert_eq!(stage.drain(10, reader), [0]);
}

/// A rank that has closed has done its part: the others may take as long as they want for theirs.
#[test]
fn a_rank_that_has_closed_is_not_dead() {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let reader = stage.reader(10, group("viewer", Policy::Block));
    for (writer, block) in [(zero, (0, 8)), (one, (8, 16))] {
        stage.write_half(writer, block);
    }
    stage.close(zero);
    assert_eq!(stage.drain(10, reader), [0]);
    let next = stage.next(10, reader);
    stage.pass(1000);
    let fault = stage.still_waits(next);
    assert!(
        matches!(&fault, Fault::NoStep { whom, .. } if whom == "solver.1 to commit step 1"),
        "{fault}"
    );
    stage.close(one);
    let end = stage.next(10, reader);
    assert_eq!(stage.answer(end), Answer::End(EndOfStream::Closed));
}

/// Nor is a rank told that a step is there which one that has closed will never write.
#[test]
fn no_step_is_committed_that_never_becomes_whole() {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let reader = stage.reader(10, group("viewer", Policy::Block));
    let ticket = stage.begin(zero, 0, 64);
    let buffers = stage.buffers(ticket);
    stage.close(one);
    let ticket = stage.commit(zero, 0, line(&[(0, 8)]), &buffers);
    let stream = "field".to_owned();
    let (rank, step) = (1, 0);
    assert_eq!(
        stage.fault(ticket),
        Fault::RankClosed {
            stream,
            program: "solver".to_owned(),
            rank,
            step
        }
    );
    // It knows that there is no step 0: so it may close, and nothing is missing.
    stage.close(zero);
    let end = stage.next(10, reader);
    assert_eq!(stage.answer(end), Answer::End(EndOfStream::Closed));
    assert!(stage.buffers.is_empty());
}
