//! What the ways by messages share.
//!
//! | message | from | to | content |
//! |---|---|---|---|
//! | [`HEADER`] | source | all, once | the header |
//! | [`FRAME`], with its number | source | a worker | the pixels |
//! | [`END`] | source | each worker | nothing: there are no more frames |
//! | [`RESULT`], with its number | a worker | sink | the pixels |
//! | [`DONE`], with the number of frames | source | sink | nothing |
//! | [`READY`] | a worker | source | nothing: it requests a frame (`req-rep`) |
//! | [`TAKEN`] | sink | a worker | nothing: the result has arrived (`req-rep`) |
//!
//! The highest byte of a tag says what the message is; the number is below it. A worker that is
//! lost ends the job: its frames were in its memory alone.

use super::super::measured::PATIENCE;
use super::super::{Error, Header, Result, SINK, SOURCE, WORKERS};
use super::{Pixels, Processed};
use samite::{Fabric, Match, PeerId, Status};

const HEADER: u64 = 0x10 << KIND;
pub(super) const FRAME: u64 = 0x20 << KIND;
const END: u64 = 0x21 << KIND;
const RESULT: u64 = 0x30 << KIND;
const DONE: u64 = 0x31 << KIND;
pub(super) const READY: u64 = 0x40 << KIND;
const TAKEN: u64 = 0x50 << KIND;

/// The bits below the kind of a message.
const KIND: u32 = 56;
/// The number in a tag.
const NUMBER: u64 = (1 << KIND) - 1;
/// What is compared to receive a frame or [`END`], a result or [`DONE`].
const PAIR: u64 = 0xfe << KIND;

/// Returns the tag of a message about a frame.
pub(super) fn numbered(kind: u64, number: u64) -> u64 {
    kind | (number & NUMBER)
}

fn unexpected(status: &Status) -> Error {
    let Status { tag, len, from, .. } = status;
    Error::Unexpected(format!(
        "a message of {len} bytes, tag {tag:#x}, from {from}"
    ))
}

/// Returns the only unit of a program.
pub(in super::super) fn only(fabric: &Fabric, program: &str) -> Result<PeerId> {
    let units = fabric.program(program)?;
    let none = || Error::Unexpected(format!("no unit of the program {program}"));
    units.first().copied().ok_or_else(none)
}

/// Waits for one of these messages from any of `whom`, who may be slow; ends if one of them is
/// lost.
pub(super) fn await_any(
    fabric: &Fabric,
    what: &'static str,
    whom: &[PeerId],
    wants: &[Match],
) -> Result<Status> {
    let find = || wants.iter().find_map(|wants| fabric.probe(*wants));
    Ok(fabric.wait_stepping_within(PATIENCE, what, whom, find, || false)?)
}

fn receive_header(fabric: &Fabric, source: PeerId) -> Result<Header> {
    let (_, bytes) = fabric.recv_vec(Match::from(source, HEADER))?;
    let (words, rest) = bytes.as_chunks();
    let words: Vec<u64> = words.iter().copied().map(u64::from_le_bytes).collect();
    match rest.is_empty() {
        true => Header::from_words(&words),
        false => Err(Error::Unexpected(format!(
            "a header of {} bytes",
            bytes.len()
        ))),
    }
}

/// The source, for all ways: whom it knows, and what it has sent.
pub(super) struct Outlet {
    pub(super) fabric: Fabric,
    pub(super) workers: Vec<PeerId>,
    sink: PeerId,
    /// The rank of the worker whose turn it is.
    turn: usize,
    /// The messages with frames or about them.
    pub(super) messages: u64,
}

impl Outlet {
    pub(super) fn new(fabric: &Fabric, header: Header) -> Result<Outlet> {
        let workers = fabric.program(WORKERS)?;
        let sink = only(fabric, SINK)?;
        let words = header.to_words().map(u64::to_le_bytes);
        for to in workers.iter().chain([&sink]) {
            fabric.send(*to, HEADER, words.as_flattened())?;
        }
        Ok(Outlet {
            fabric: fabric.clone(),
            workers,
            sink,
            turn: 0,
            messages: 0,
        })
    }

    /// Returns the rank of the next worker in turn.
    pub(super) fn next(&mut self) -> usize {
        let next = self.turn;
        self.turn = (next + 1) % self.workers.len();
        next
    }

    /// Tells all that there are no more frames.
    pub(super) fn finish(&mut self, frames: u64) -> Result<()> {
        self.end_workers()?;
        self.end_sink(frames)
    }

    pub(super) fn end_workers(&mut self) -> Result<()> {
        for worker in &self.workers {
            self.fabric.send(*worker, END, &[])?;
        }
        Ok(())
    }

    pub(super) fn end_sink(&mut self, frames: u64) -> Result<()> {
        Ok(self.fabric.send(self.sink, numbered(DONE, frames), &[])?)
    }
}

/// A worker, for all ways: whom it knows, and what it has sent.
pub(super) struct WorkerEnd {
    pub(super) fabric: Fabric,
    pub(super) header: Header,
    source: PeerId,
    pub(super) sink: PeerId,
    pub(super) messages: u64,
}

impl WorkerEnd {
    pub(super) fn new(fabric: &Fabric) -> Result<WorkerEnd> {
        let (source, sink) = (only(fabric, SOURCE)?, only(fabric, SINK)?);
        Ok(WorkerEnd {
            fabric: fabric.clone(),
            header: receive_header(fabric, source)?,
            source,
            sink,
            messages: 0,
        })
    }

    /// Waits for a frame. Returns its number, and its pixels; `None` after the last one.
    pub(super) fn receive(&self) -> Result<Option<(u64, Vec<u8>)>> {
        let wants = Match::from(self.source, FRAME).masked(PAIR);
        let (status, pixels) = self.fabric.recv_vec(wants)?;
        let is_frame = status.tag & !NUMBER == FRAME && pixels.len() == self.header.size.pixels();
        match status.tag {
            END => Ok(None),
            tag if is_frame => Ok(Some((tag & NUMBER, pixels))),
            _ => Err(unexpected(&status)),
        }
    }
}

/// A worker that takes a frame, computes, and sends the result to the sink. If it requests, it asks
/// for each frame, and waits until the sink has the result.
pub(super) struct AtWorker {
    end: WorkerEnd,
    requests: bool,
    result: Vec<u8>,
}

impl AtWorker {
    pub(super) fn new(fabric: &Fabric, requests: bool) -> Result<Self> {
        let end = WorkerEnd::new(fabric)?;
        let result = vec![0; end.header.size.pixels()];
        Ok(AtWorker {
            end,
            requests,
            result,
        })
    }
}

impl super::AtWorker for AtWorker {
    fn header(&self) -> Header {
        self.end.header
    }

    fn process(&mut self, work: &mut dyn FnMut(&[u8], &mut [u8])) -> Result<bool> {
        let end = &mut self.end;
        if self.requests {
            end.fabric.send(end.source, READY, &[])?;
        }
        let Some((number, frame)) = end.receive()? else {
            return Ok(false);
        };
        work(&frame, &mut self.result);
        end.fabric.send(end.sink, result(number), &self.result)?;
        end.messages += 1;
        if self.requests {
            end.fabric.recv(Match::from(end.sink, TAKEN), &mut [])?;
            end.messages += 1;
        }
        Ok(true)
    }

    fn messages(&self) -> u64 {
        self.end.messages
    }
}

/// Returns the tag of a result.
pub(super) fn result(number: u64) -> u64 {
    numbered(RESULT, number)
}

/// A sink that takes the results of all workers. If it replies, it tells a worker of each result
/// that it has it.
pub(super) struct FromWorkers {
    fabric: Fabric,
    header: Header,
    replies: bool,
    workers: Vec<PeerId>,
    /// The workers; and the source until the number of frames is known.
    awaited: Vec<PeerId>,
    frames: Option<u64>,
    received: u64,
    messages: u64,
}

impl FromWorkers {
    pub(super) fn new(fabric: &Fabric, replies: bool) -> Result<Self> {
        let source = only(fabric, SOURCE)?;
        let header = receive_header(fabric, source)?;
        let workers = fabric.program(WORKERS)?;
        let mut awaited = workers.clone();
        awaited.push(source);
        Ok(FromWorkers {
            fabric: fabric.clone(),
            header,
            replies,
            workers,
            awaited,
            frames: None,
            received: 0,
            messages: 0,
        })
    }

    /// Takes a result. If it does not wait, it returns `None` also if none has arrived.
    fn take(&mut self, only: Option<u64>, waits: bool) -> Result<Option<Processed>> {
        while self.frames != Some(self.received) {
            let wants = match only {
                None => &[Match::any(RESULT).masked(PAIR)][..],
                Some(number) => &[Match::any(result(number)), Match::any(DONE).masked(!NUMBER)],
            };
            let found = match waits {
                true => Some(await_any(
                    &self.fabric,
                    "a processed frame",
                    &self.awaited,
                    wants,
                )?),
                false => wants.iter().find_map(|wants| self.fabric.probe(*wants)),
            };
            let Some(found) = found else { break };
            let (status, bytes) = self.fabric.recv_vec(Match::from(found.from, found.tag))?;
            let worker = self
                .workers
                .iter()
                .position(|worker| *worker == status.from);
            let is_whole = bytes.len() == self.header.size.pixels();
            match (status.tag & !NUMBER, worker) {
                (DONE, None) => {
                    self.frames = Some(status.tag & NUMBER);
                    self.awaited.truncate(self.workers.len());
                }
                (RESULT, Some(worker)) if is_whole => {
                    self.received += 1;
                    if self.replies {
                        self.fabric.send(status.from, TAKEN, &[])?;
                        self.messages += 1;
                    }
                    return Ok(Some(Processed {
                        number: status.tag & NUMBER,
                        worker,
                        pixels: Pixels::Message(bytes),
                    }));
                }
                _ => return Err(unexpected(&status)),
            }
        }
        Ok(None)
    }
}

impl super::FromWorkers for FromWorkers {
    fn header(&self) -> Header {
        self.header
    }

    fn next(&mut self, only: Option<u64>) -> Result<Option<Processed>> {
        self.take(only, true)
    }

    fn next_now(&mut self, only: Option<u64>) -> Result<Option<Processed>> {
        self.take(only, false)
    }

    fn messages(&self) -> Result<u64> {
        Ok(self.messages)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AtWorker as _, FromWorkers as _, ToWorkers as _, mp_async_each};
    use super::*;
    use crate::Size;
    use crate::y4m::Rate;
    use samite_testkit::{Cluster, Outcome, Who, pause, programs, same};

    const FRAMES: u64 = 40;

    /// A sink that has too many results that wait for one receives no other one, but that there are
    /// no more frames, though a worker is slow with one of the first frames.
    #[test]
    fn only_the_next_result_is_received() {
        let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
            match &*fabric.identity().program {
                SOURCE => {
                    let header = Header {
                        size: Size::new(640, 480)?,
                        rate: Rate::default(),
                    };
                    let mut workers = mp_async_each::ToWorkers::new(fabric, header)?;
                    let pixels = vec![7; header.size.pixels()];
                    for number in 0..FRAMES {
                        workers.send(number, &pixels, None)?;
                    }
                    workers.finish(FRAMES)?;
                }
                SINK => {
                    let mut results = FromWorkers::new(fabric, false)?;
                    for number in 0..FRAMES {
                        let result = results.next(Some(number))?;
                        same!(result.map(|result| result.number), Some(number));
                    }
                    same!(results.next(None)?.is_none(), true);
                    fabric.barrier(&members[1..])?;
                }
                _ => {
                    let mut frames = AtWorker::new(fabric, false)?;
                    let mut is_first = fabric.identity().rank == 0;
                    while frames.process(&mut |frame, to| {
                        if std::mem::take(&mut is_first) {
                            pause("has a frame");
                        }
                        to.copy_from_slice(frame);
                    })? {}
                    fabric.barrier(&members[1..])?;
                }
            }
            Ok(())
        };
        let name = "job::via::message::tests::only_the_next_result_is_received";
        let job = programs(&[(SOURCE, 1), (WORKERS, 3), (SINK, 1)]);
        job.orchestrate(name, body, |cluster: &mut Cluster| {
            let first = Who::Unit(1);
            cluster.wait_point(first, "has a frame");
            cluster.wait_asleep(Who::Unit(4));
            cluster.release(first);
            cluster.all_end();
        });
    }
}
